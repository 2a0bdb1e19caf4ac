"""Stands for torchvision, whose wheel is built for one torch: vllm from 0.16 and transformers 5 import it with their processors of images.

Nothing that is tested here looks at an image. What is asked of it at import is there; what works on an image is not.
"""


def refusing(module, name):
    """For a name that a module may import, and a type may be annotated with; to call it fails."""
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(self, *args, **kwargs):
        raise NotImplementedError(f"torchvision's {module.removeprefix('torchvision.')}.{name} has no stand-in")

    return type(name, (), {"__init__": refuse})
