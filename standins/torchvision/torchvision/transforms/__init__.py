"""Names to import, and the interpolations by torchvision's values: transformers makes tables of them when it is imported."""

import enum
from functools import partial

from torchvision import refusing

__getattr__ = partial(refusing, __name__)


class InterpolationMode(enum.Enum):
    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
