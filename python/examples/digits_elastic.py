# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits with PyTorch, on workers that may die, leave and come while it trains.

    tutti run --min-np 2 --max-np 4 python3 digits_elastic.py

Kill one of the processes: the others go on from the last commit, and a new one takes its place.
Written for Horovod: with `import horovod.torch as hvd` it runs there.
"""

import argparse
import os
import time

import torch
import torch.nn.functional as F

import tutti.torch as hvd

DATA = os.path.join(os.path.dirname(__file__), "..", "..", "examples", "data", "digits.csv")
BATCH = 16  # the samples that one rank takes at a time


def load(path):
    """Returns images (n, 64) with values from 0 to 1, and the digits that they show (n,)."""
    with open(path, encoding="ascii") as file:
        table = torch.tensor([[float(field) for field in line.split(",")] for line in file])
    return table[:, :64] / 16, table[:, 64].long()


def train_batch(state, images, labels, indices):
    state.optimizer.zero_grad()
    loss = F.cross_entropy(state.model(images[indices]), labels[indices])
    loss.backward()
    # How often the model has seen which sample; reduced with the gradients, kept with the model.
    seen = torch.zeros_like(state.seen)
    seen[indices] += 1
    state.seen += hvd.allreduce(seen, name="seen", op=hvd.Sum)
    state.optimizer.step()
    return loss.detach()


@hvd.elastic.run
def train(state, images, labels, arguments):
    print(f"process {os.getpid()} is rank {hvd.rank()} of {hvd.size()} in epoch {state.epoch}",
          flush=True)
    for state.epoch in range(state.epoch, arguments.epochs):
        for batch in range(-(-len(state.sampler) // BATCH)):
            indices = state.sampler.get_indices(batch, BATCH)
            loss = train_batch(state, images, labels, indices)
            state.sampler.record_batch(batch, BATCH)
            state.commit()
            time.sleep(arguments.pause)
        # An epoch whose last batch was committed before the ranks changed has none left.
        if hvd.rank() == 0:
            print(f"epoch {state.epoch} done by {hvd.size()} ranks", flush=True)
        state.sampler.set_epoch(state.epoch + 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=DATA)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each batch")
    arguments = parser.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    images, labels = load(arguments.data)
    held_out = torch.arange(len(labels)) % 5 == 0
    train_images, train_labels = images[~held_out], labels[~held_out]

    model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    state = hvd.elastic.TorchState(
        model=model, optimizer=optimizer, epoch=0, seen=torch.zeros(len(train_labels)),
        sampler=hvd.elastic.ElasticSampler(train_labels, shuffle=True, seed=3))
    train(state, train_images, train_labels, arguments)

    with torch.no_grad():
        right = (model(images[held_out]).argmax(1) == labels[held_out]).float().mean()
    if hvd.rank() == 0:
        print(f"{right:.1%} of the digits held out are right; every sample was seen "
              f"{int(state.seen.min())} to {int(state.seen.max())} times in {arguments.epochs} "
              f"epochs, {int(state.seen.sum()) - arguments.epochs * len(train_labels)} more than "
              "once an epoch to make the parts even", flush=True)
    assert state.seen.min() >= arguments.epochs, "samples were lost"
    assert right > 0.9
    hvd.shutdown()


if __name__ == "__main__":
    main()
