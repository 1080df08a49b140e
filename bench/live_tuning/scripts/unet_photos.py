"""Trains a U-Net to take noise out of photographs, and keeps an average of its weights.

--photos is an ImageFolder: train/CLASS/*.jpg. One worker process decodes and crops them and changes their colours, for a network
that is small beside that.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

on_ready = None  # Called with model, optimizer and loader just before the loop.


class Photographs(Dataset):
    def __init__(self, folder, size):
        self.files = sorted(Path(folder).glob("train/*/*.jpg"))
        if not self.files:
            raise SystemExit(f"unet_photos: {folder}: wanted train/CLASS/*.jpg, found none")
        self.transform = transforms.Compose([
            transforms.RandomResizedCrop(size, scale=(0.3, 1.0)), transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.4, 0.4, 0.4, 0.1), transforms.ToTensor()])

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with Image.open(self.files[index]) as image:
            return self.transform(image.convert("RGB"))


def convolutions(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class UNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down1, self.down2 = convolutions(3, width), convolutions(width, 2 * width)
        self.middle = convolutions(2 * width, 4 * width)
        self.up2, self.up1 = convolutions(6 * width, 2 * width), convolutions(3 * width, width)
        self.output = nn.Conv2d(width, 3, 1)

    def forward(self, images):
        first = self.down1(images)
        second = self.down2(F.max_pool2d(first, 2))
        middle = self.middle(F.max_pool2d(second, 2))
        second = self.up2(torch.cat([F.interpolate(middle, scale_factor=2), second], dim=1))
        first = self.up1(torch.cat([F.interpolate(second, scale_factor=2), first], dim=1))
        return images + self.output(first)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--photos", default="photos")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    loader = DataLoader(Photographs(args.photos, args.size), args.batch_size, shuffle=True, num_workers=args.workers,
                        persistent_workers=args.workers > 0)
    model = UNet()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    if on_ready is not None:
        on_ready(model, optimizer, loader)

    step = 0
    while step < args.steps:
        for clean in loader:
            noisy = clean + 0.1 * torch.randn_like(clean)
            loss = F.l1_loss(model(noisy), clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update_parameters(model)
            step += 1
            if step % 100 == 0 or step == args.steps:
                print(f"step {step}: loss {loss.item():.4f}", flush=True)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
