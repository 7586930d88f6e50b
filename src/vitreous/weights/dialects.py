"""All dialects, by name and in the order of detection."""

from vitreous.weights.dialect import Dialect
from vitreous.weights.dialect_names import DialectName
from vitreous.weights.dino import DINO, DINOV2
from vitreous.weights.google import BIG_VISION, BIT, GOOGLE
from vitreous.weights.huggingface import HUGGINGFACE
from vitreous.weights.native import NATIVE
from vitreous.weights.timm import TIMM
from vitreous.weights.torchvision import TORCHVISION

# The first dialect that matches a file reads it. DINOv2 files also match DINO, and DINO files also match timm.
# The reader of GOOGLE also reads BIG_VISION and BIT.
DETECTION_ORDER = (NATIVE, GOOGLE, HUGGINGFACE, TORCHVISION, DINOV2, DINO, TIMM)
DIALECTS: dict[DialectName, Dialect] = {
    dialect.name: dialect for dialect in (GOOGLE, BIG_VISION, BIT, TIMM, HUGGINGFACE, TORCHVISION, DINO, DINOV2, NATIVE)
}
