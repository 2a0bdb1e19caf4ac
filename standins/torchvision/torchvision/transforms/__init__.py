"""Names that a module may import and a type may be annotated with; to call one fails."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {"__init__": _refuse})


def _refuse(self, *args, **kwargs):
    raise NotImplementedError(f"torchvision's {type(self).__name__} has no stand-in")
