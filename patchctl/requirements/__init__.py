"""Requirements installed beside the patched trees: what trees, profiles and extensions need, resolved and locked.

    manifests/requirements/NAME/set.yaml                   overrides for contradicting requirements, and what is left out
    manifests/requirements/NAME/declared.txt               what the trees declare at their pins, generated
    manifests/requirements/NAME/PLATFORM.txt               the lock: versions and digests for pip, generated
    manifests/requirements/NAME/PLATFORM-elsewhere.txt     packages of other indexes, without digests, generated

trees -> declared -> inputs -> uv -> lock -> compared with an environment. Only uv needs a network.
"""
