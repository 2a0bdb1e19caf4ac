"""Names to import."""

from functools import partial

from torchvision import refusing

__getattr__ = partial(refusing, __name__)
