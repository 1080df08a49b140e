"""Fine-tunes a tiny BERT as a classifier with Hugging Face's Trainer. The weights are random and nothing is downloaded.

Needs the packages transformers and accelerate, which the frameworks' environment has and the project's own has not.

A text is made from the seed: word numbers, and its class is which of two words comes more often.
"""

import argparse
import random
import tempfile

import torch

try:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
except ImportError as error:
    raise SystemExit(f"hugging_face: wanted transformers, of the frameworks' environment; found: {error}") from None

on_ready = None  # Called with model, optimizer and loader just before the loop, when Trainer has made them.

VOCABULARY, PADDING, WORDS = 1000, 0, (5, 6)


class Ready(TrainerCallback):
    def on_train_begin(self, args, state, control, model=None, optimizer=None, train_dataloader=None, **others):
        if on_ready is not None:
            on_ready(model, optimizer, train_dataloader)


def make_texts(size, seed):
    draw = random.Random(seed)
    texts = []
    for _ in range(size):
        label = draw.randrange(2)
        text = [draw.randrange(10, VOCABULARY) for _ in range(draw.randint(16, 64))]
        for place in draw.sample(range(len(text)), 6):
            text[place] = WORDS[label] if draw.random() < 0.8 else WORDS[1 - label]
        texts.append({"input_ids": text, "labels": label})
    return texts


def collate(texts):
    length = max(len(text["input_ids"]) for text in texts)
    padded = [text["input_ids"] + [PADDING] * (length - len(text["input_ids"])) for text in texts]
    tokens = torch.tensor(padded)
    return {"input_ids": tokens, "attention_mask": (tokens != PADDING).long(),
            "labels": torch.tensor([text["labels"] for text in texts])}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = BertForSequenceClassification(BertConfig(
        vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512,
        max_position_embeddings=64, num_labels=2))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model, train_dataset=make_texts(8000, args.seed), data_collator=collate, callbacks=[Ready()],
            args=TrainingArguments(
                output_dir=folder, max_steps=args.steps, per_device_train_batch_size=args.batch_size, learning_rate=5e-4,
                warmup_steps=20, seed=args.seed, use_cpu=True, save_strategy="no", report_to="none", logging_strategy="no",
                disable_tqdm=True))
        result = trainer.train()
    print(f"step {result.global_step}: loss {result.training_loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
