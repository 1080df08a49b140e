"""Classifies sequences by the last state of an LSTM."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

profile = nullcontext  # What stands around the loop.

BATCH, EPOCHS, STEPS = 16, 2, 20


class SequenceClassifier(nn.Module):
    def __init__(self, inputs=32, hidden=64, classes=4):
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        output, _ = self.lstm(x)
        return self.head(output[:, -1])


def main():
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    count = BATCH * STEPS // EPOCHS
    dataset = TensorDataset(torch.randn(count, 24, 32), torch.randint(4, (count,)))
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)

    model = SequenceClassifier().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)

    with profile():
        for epoch in range(EPOCHS):
            total_loss = 0.0
            for sequences, labels in loader:
                sequences, labels = sequences.to(device), labels.to(device)
                optimizer.zero_grad()
                loss = criterion(model(sequences), labels)
                loss.backward()
                optimizer.step()
                total_loss += loss.item()
            scheduler.step(total_loss)
            print(f"epoch {epoch + 1}: loss {total_loss / len(loader):.4f}")


if __name__ == "__main__":
    main()
