"""Classifies bags of words by the mean of their embeddings."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

profile = nullcontext  # What stands around the loop.

BATCH, EPOCHS, STEPS = 32, 2, 20


class BagOfWords(nn.Module):
    def __init__(self, words=2000, width=32, classes=5):
        super().__init__()
        self.embedding = nn.EmbeddingBag(words, width, mode="mean")
        self.fc = nn.Linear(width, classes)

    def forward(self, words):
        return self.fc(F.relu(self.embedding(words)))


def main():
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count = BATCH * STEPS // EPOCHS
    dataset = TensorDataset(torch.randint(2000, (count, 12)), torch.randint(5, (count,)))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)

    model = BagOfWords().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)

    with profile():
        for epoch in range(EPOCHS):
            total_correct, total_count = 0, 0
            for words, labels in loader:
                words, labels = words.to(device), labels.to(device)
                optimizer.zero_grad()
                output = model(words)
                loss = criterion(output, labels)
                loss.backward()
                optimizer.step()
                total_correct += (output.argmax(1) == labels).sum().item()
                total_count += labels.size(0)
            scheduler.step()
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}, accuracy {total_correct / total_count:.2%}")


if __name__ == "__main__":
    main()
