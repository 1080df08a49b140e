"""Fine-tunes torchvision's ResNet-18 on a folder of photographs by headrace.Trainer: the run of examples/photos_fine_tuning.toml as a
script. Killed and started again, it goes on from its newest checkpoint. fine_tuning_plain.py is the same without the Trainer.

--data is an ImageFolder: train/CLASS/*.jpg and val/CLASS/*.jpg. --weights is a safetensors file with a state_dict of resnet18 of any
classes, whose head is left out (docs/guides/fine_tuning.md makes one); without it the network begins at random.
"""

import argparse
import pathlib

import headrace as hr
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torchvision import models


def make_loaders(args):
    transform = {"size": args.size, "crop": "random_resized", "flip_probability": 0.5,
                 "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    source = f"folder:{args.data}"
    return (hr.Loader(source, seed=args.seed, batch_size=args.batch_size, drop_last=True, transform=transform),
            hr.Loader(source, split="val", batch_size=args.batch_size, transform=transform))


def make_model(args, classes):
    torch.manual_seed(args.seed)
    model = models.resnet18(num_classes=classes)
    if args.weights:
        backbone = {name: tensor for name, tensor in load_file(args.weights).items() if not name.startswith("fc.")}
        missing, unexpected = model.load_state_dict(backbone, strict=False)
        missing = sorted(set(missing) - {"fc.weight", "fc.bias"})
        if missing or unexpected:
            raise SystemExit(f"{args.weights}: wanted torchvision's resnet18, found it without {missing} and with {unexpected}")
    return model


def make_optimizer(args, model):
    """The head has the learning rate, the rest a tenth of it; biases and the scales of norms have no weight decay."""
    groups = [{"params": [parameter for name, parameter in model.named_parameters()
                          if name.startswith("fc.") == is_head and (parameter.ndim > 1) == decays],
               "lr": args.lr if is_head else 0.1 * args.lr, "weight_decay": args.weight_decay if decays else 0.0}
              for is_head in (True, False) for decays in (True, False)]
    return torch.optim.AdamW(groups, fused=True)


def loss_of(logits, labels):
    return nn.functional.cross_entropy(logits, labels, label_smoothing=0.1)


def forward(model, batch):
    logits = model(batch["image"])
    return loss_of(logits, batch["labels"]), hr.accuracy(logits, batch["labels"])


def text_of(evaluation):
    return ", ".join(f"val {name} {evaluation[name]:.6f}" for name in ("loss", "top1", "top5") if name in evaluation)


def arguments(description, out):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=pathlib.Path, default=pathlib.Path("photos"))
    parser.add_argument("--weights", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(out))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--warmup-steps", type=int, default=75)
    # With the warm-up of averages 0.999 would be reached after 8,990 updates: 0.98 is for a run of 750.
    parser.add_argument("--ema-decay", type=float, default=0.98)
    parser.add_argument("--patience", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    return parser


def main():
    parser = arguments(__doc__, "runs/fine_tuning")
    parser.add_argument("--checkpoint-every-s", type=float, default=300.0)
    args = parser.parse_args()

    loader, val_loader = make_loaders(args)
    model = make_model(args, len(loader.classes))
    trainer = hr.Trainer(model, make_optimizer(args, model), forward, max_grad_norm=1.0, ema_decay=args.ema_decay,
                         lr_scheduler={"name": "CosineAnnealingLR", "warmup_steps": args.warmup_steps})
    if any(args.out.glob("checkpoint-*.safetensors")):
        print(f"goes on after {trainer.load(args.out)['optimizer_steps']} updates")

    def tell(epoch):
        print(f"epoch {epoch['epoch']}: loss {epoch['loss']:.6f}, lr {trainer.learning_rate:.6g}, {text_of(epoch['evaluation'])}")

    trainer.fit(loader, args.epochs, evaluate=val_loader, on_epoch=tell, checkpoints=args.out,
                checkpoint_every_s=args.checkpoint_every_s, monitor="top1", early_stopping_patience=args.patience)
    if trainer.progress["epoch"] < args.epochs:
        print(f"stopped early, after {trainer.progress['epoch']} of {args.epochs} epochs")

    trainer.load(args.out / "checkpoint-best.safetensors")
    with trainer.with_averages():
        save_file(model.state_dict(), args.out / "model.safetensors")
    print(f"the best: {text_of(trainer.evaluate(val_loader))}")


if __name__ == "__main__":
    main()
