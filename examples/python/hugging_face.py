"""Trains a tiny BERT as a classifier with Hugging Face's Trainer, tuned by a callback while it runs. The weights are random, the texts
are made, and nothing is downloaded. Needs the packages transformers and accelerate.
"""

import argparse
import random
import tempfile

import torch
from headrace.transformers import AutoTune
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

WORDS = (5, 6)  # Which of the two comes more often is a text's class.


def make_texts(size, length=32):
    draw = random.Random(1)
    texts = []
    for _ in range(size):
        label = draw.randrange(2)
        text = [draw.randrange(10, 1000) for _ in range(length)]
        for place in draw.sample(range(length), 6):
            text[place] = WORDS[label] if draw.random() < 0.8 else WORDS[1 - label]
        texts.append({"input_ids": torch.tensor(text), "labels": label})
    return texts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.manual_seed(1)
    model = BertForSequenceClassification(BertConfig(
        vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512, num_labels=2))
    tuning = AutoTune(allow="reduced_precision")
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(model=model, train_dataset=make_texts(2000), callbacks=[tuning], args=TrainingArguments(
            output_dir=folder, max_steps=args.steps, per_device_train_batch_size=args.batch_size, learning_rate=5e-4, use_cpu=True,
            save_strategy="no", report_to="none", logging_strategy="no", disable_tqdm=True))
        result = trainer.train()
    print(f"step {result.global_step}: loss {result.training_loss:.4f}")
    print(tuning.handle.report())


if __name__ == "__main__":
    main()
