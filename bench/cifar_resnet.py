"""ResNet-18 for images of 32 x 32, as a PyTorch user writes it: torchvision's with the small stem that a recipe has by
model.stem = "small"."""

from torch import nn
from torchvision.models import resnet18


def cifar_resnet18() -> nn.Module:
    """For images (N, 3, 32, 32) of 10 classes: a 3x3 convolution of stride 1 and no pooling at the beginning."""
    model = resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model
