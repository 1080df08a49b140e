"""The run of fine_tuning.py in plain PyTorch: averages of the weights, schedule, clipping, figures, early stop and a checkpoint an epoch
by hand. Loaders, network and optimizer are fine_tuning.py's, so the batches are the same ones and losses can be compared line by line.

--data is an ImageFolder: train/CLASS/*.jpg and val/CLASS/*.jpg. --weights is a safetensors file with a state_dict of resnet18 of any
classes, whose head is left out (docs/guides/fine_tuning.md makes one); without it the network begins at random.
"""

import copy
import math
import os

import torch
from fine_tuning import arguments, loss_of, make_loaders, make_model, make_optimizer, text_of
from safetensors.torch import load_file, save_file
from torch import nn


def rate_factor(step, warmup_steps, steps):
    """Of the learning rate at an update, counted from 0: linear warm-up, then a cosine that ends at 0 with the last one."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    return (1 + math.cos(math.pi * min(1.0, (step - warmup_steps) / max(1, steps - 1 - warmup_steps)))) / 2


@torch.no_grad()
def move_averages(averages, model, update, decay):
    """After an update, counted from 1. The first ones move far, so that the initial weights are forgotten."""
    decay = min(decay, (1 + update) / (10 + update))
    for average, value in zip(averages.state_dict().values(), model.state_dict().values()):
        if average.is_floating_point():
            average.lerp_(value, 1 - decay)
        else:
            average.copy_(value)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    topk = [k for k in (1, 5) if k < len(loader.classes)]
    sums, samples = {"loss": 0.0, **{f"top{k}": 0 for k in topk}}, 0
    for images, labels in loader:
        logits = model(images)
        right = logits.topk(max(topk)).indices == labels[:, None]
        sums["loss"] += loss_of(logits, labels).item() * len(labels)
        for k in topk:
            sums[f"top{k}"] += right[:, :k].sum().item()
        samples += len(labels)
    return {name: value / samples for name, value in sums.items()}


def train_epoch(model, averages, optimizer, schedule, loader, ema_decay):
    model.train()
    loss_sum, samples = 0.0, 0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = loss_of(model(images), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        move_averages(averages, model, schedule.last_epoch, ema_decay)
        loss_sum += loss.item() * len(labels)
        samples += len(labels)
    return loss_sum / samples


def main():
    args = arguments(__doc__, "runs/fine_tuning_plain").parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint, partial, best_file = (args.out / name for name in ("checkpoint.pt", "partial.pt", "model.safetensors"))

    loader, val_loader = make_loaders(args)
    model = make_model(args, len(loader.classes))
    averages = copy.deepcopy(model)
    optimizer = make_optimizer(args, model)
    steps = args.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, args.warmup_steps, steps))

    parts = {"model": model, "averages": averages, "optimizer": optimizer, "schedule": schedule}
    epoch, best, epochs_since_best = 0, -1.0, 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        epoch, best, epochs_since_best = saved["place"]
        print(f"goes on after {schedule.last_epoch} updates")

    while epoch < args.epochs and not 0 < args.patience <= epochs_since_best:
        loader.set_epoch(epoch)
        loss = train_epoch(model, averages, optimizer, schedule, loader, args.ema_decay)
        evaluation = evaluate(averages, val_loader)
        epoch, epochs_since_best = epoch + 1, epochs_since_best + 1
        print(f"epoch {epoch}: loss {loss:.6f}, lr {schedule.get_last_lr()[0]:.6g}, {text_of(evaluation)}")
        if evaluation["top1"] > best:
            best, epochs_since_best = evaluation["top1"], 0
            save_file(averages.state_dict(), best_file)
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**state, "place": (epoch, best, epochs_since_best)}, partial)
        os.replace(partial, checkpoint)
    if epoch < args.epochs:
        print(f"stopped early, after {epoch} of {args.epochs} epochs")

    averages.load_state_dict(load_file(best_file))
    print(f"the best: {text_of(evaluate(averages, val_loader))}")


if __name__ == "__main__":
    main()
