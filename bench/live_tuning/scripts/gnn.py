"""Trains a graph network to tell the communities of a graph from its edges: messages are summed by index_add, and every step sees
the whole graph, so there is no loader.

The graph is made from the seed: 16 communities, and nine in ten edges lie within one.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

on_ready = None  # Called with model, optimizer and None (no loader) just before the loop.

COMMUNITIES = 16


def make_graph(nodes, edges, seed):
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(COMMUNITIES, (nodes,), generator=generator)
    by_label = torch.argsort(label)
    count = torch.bincount(label, minlength=COMMUNITIES)
    first = torch.cumsum(count, 0) - count
    source = torch.randint(nodes, (edges,), generator=generator)
    anywhere = torch.randint(nodes, (edges,), generator=generator)
    own = label[source]
    place = (torch.rand(edges, generator=generator) * count[own]).long().clamp(max=count[own] - 1)
    within = torch.rand(edges, generator=generator) < 0.9
    target = torch.where(within, by_label[first[own] + place], anywhere)
    features = torch.randn(nodes, 64, generator=generator) + 0.3 * F.one_hot(label, 64)
    return features, torch.stack([source, target]), label


class GraphLayer(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.own, self.message = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)

    def forward(self, features, edges, degree):
        source, target = edges
        messages = self.message(features)
        received = torch.zeros_like(messages).index_add(0, target, messages[source])
        return self.own(features) + received / degree


class GraphNet(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.layers = nn.ModuleList([GraphLayer(64, hidden), GraphLayer(hidden, hidden)])
        self.output = nn.Linear(hidden, COMMUNITIES)

    def forward(self, features, edges):
        degree = torch.bincount(edges[1], minlength=len(features)).clamp(min=1).unsqueeze(1)
        for layer in self.layers:
            features = F.dropout(F.relu(layer(features, edges, degree)), 0.2, self.training)
        return self.output(features)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=8_000)
    parser.add_argument("--edges", type=int, default=80_000)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    features, edges, label = make_graph(args.nodes, args.edges, args.seed)
    known = torch.rand(args.nodes) < 0.1
    model = GraphNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)

    if on_ready is not None:
        on_ready(model, optimizer, None)

    for step in range(1, args.steps + 1):
        model.train()
        optimizer.zero_grad()
        output = model(features, edges)
        loss = F.cross_entropy(output[known], label[known])
        loss.backward()
        optimizer.step()
        if step % 200 == 0 or step == args.steps:
            right = (output.argmax(1) == label)[~known].float().mean().item()
            print(f"step {step}: accuracy {right:.4f}, loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
