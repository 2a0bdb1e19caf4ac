"""What is installed beside the patched trees: what trees, profiles and extensions ask for, resolved once and kept as locks.

    manifests/requirements/NAME/set.yaml          what the trees' own requirements contradict, and what is left out
    manifests/requirements/NAME/declared.txt      what the trees declare at their pins, generated
    manifests/requirements/NAME/PLATFORM.txt      the lock: versions and digests, as pip reads them, generated
    manifests/requirements/NAME/PLATFORM-elsewhere.txt     what another index has, without digests, generated

trees -> declared -> inputs -> uv -> lock -> compared with an environment. Only `compile` needs a network.
"""
