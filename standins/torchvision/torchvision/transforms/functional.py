"""Names to import."""

from functools import partial

from torchvision import refusing
from torchvision.transforms import InterpolationMode as InterpolationMode

__getattr__ = partial(refusing, __name__)
