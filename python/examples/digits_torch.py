# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits with PyTorch, each rank with a part of them.

    tutti run -n 2 python3 digits_torch.py

Written for Horovod: with `import horovod.torch as hvd` it runs there.
"""

import argparse
import os

import torch
import torch.nn.functional as F

import tutti.torch as hvd

DATA = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "data", "digits.csv")


def load(path):
    """Returns images (n, 64) with values from 0 to 1, and the digits that they show (n,)."""
    with open(path, encoding="ascii") as file:
        table = torch.tensor([[float(field) for field in line.split(",")] for line in file])
    return table[:, :64] / 16, table[:, 64].long()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=DATA)
    parser.add_argument("--epochs", type=int, default=12)
    arguments = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())  # The models differ on purpose; the broadcast makes them alike.
    images, labels = load(arguments.data)
    held_out = torch.arange(len(labels)) % 5 == 0
    train = torch.utils.data.TensorDataset(images[~held_out], labels[~held_out])
    sampler = torch.utils.data.distributed.DistributedSampler(train, hvd.size(), hvd.rank())
    # The batch of all ranks together is the same whatever their number.
    loader = torch.utils.data.DataLoader(train, max(1, 64 // hvd.size()), sampler=sampler)

    model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        mean_loss = hvd.allreduce(loss.detach(), name="loss")
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {mean_loss:.4f}")

    with torch.no_grad():
        right = (model(images[held_out]).argmax(1) == labels[held_out]).float().mean()
    everywhere = hvd.allgather(right[None], name="right")
    assert bool((everywhere == right).all()), "the ranks' models differ"
    if hvd.rank() == 0:
        print(f"{right:.1%} of the digits held out are right, with {hvd.size()} ranks")
    assert right > 0.93 or arguments.epochs < 12, "fewer are right than there should be by now"
    hvd.shutdown()


if __name__ == "__main__":
    main()
