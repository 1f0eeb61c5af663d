"""A training script as users of Horovod have them, for PyTorch: the digits, a small convolutional
network, a learning rate that grows with the number of workers and decays by epochs, metrics averaged
over the workers. Nothing in it knows of Tutti.

    horovodrun -np 2 python3 digits_horovod.py
"""

import argparse
import json
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                    "..", "..", "..", "examples", "data", "digits.csv")

parser = argparse.ArgumentParser(description="digits with Horovod")
parser.add_argument("--data", default=DATA)
parser.add_argument("--batch-size", type=int, default=64, help="of one worker")
parser.add_argument("--test-batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.2)
parser.add_argument("--momentum", type=float, default=0.5)
parser.add_argument("--seed", type=int, default=42)
parser.add_argument("--no-cuda", action="store_true")
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--use-adasum", action="store_true")
parser.add_argument("--sync-bn", action="store_true")
parser.add_argument("--gradient-predivide-factor", type=float, default=1.0)
parser.add_argument("--report", help="where worker 0 writes the losses, as JSON")


class Net(nn.Module):
    def __init__(self, sync_bn):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, kernel_size=3, padding=1)
        self.norm = hvd.SyncBatchNorm(8) if sync_bn else nn.Identity()
        self.fc1 = nn.Linear(128, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.norm(F.max_pool2d(self.conv1(x), 2)))
        x = F.relu(self.fc1(x.flatten(1)))
        return F.log_softmax(self.fc2(x), dim=1)


def load(path):
    with open(path, encoding="ascii") as file:
        table = torch.tensor([[float(field) for field in line.split(",")] for line in file])
    images, labels = table[:, :64].reshape(-1, 1, 8, 8) / 6 - 0.8, table[:, 64].long()
    return (TensorDataset(images[:1280], labels[:1280]),
            TensorDataset(images[1280:1792], labels[1280:1792]))


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def train(epoch, model, optimizer, loader, sampler, args):
    model.train()
    sampler.set_epoch(epoch)  # or every epoch would see the same order
    losses = []
    for batch, (data, target) in enumerate(loader):
        if args.cuda:
            data, target = data.cuda(), target.cuda()
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(metric_average(loss.item(), "avg_train_loss"))
        if batch % 10 == 0 and hvd.rank() == 0:
            print(f"epoch {epoch} [{batch * len(data)}/{len(sampler)}] loss {loss.item():.6f}")
    return losses


def test(model, loader, sampler, args):
    model.eval()
    total_loss, right = 0.0, 0.0
    with torch.no_grad():
        for data, target in loader:
            if args.cuda:
                data, target = data.cuda(), target.cuda()
            output = model(data)
            total_loss += F.nll_loss(output, target, reduction="sum").item()
            right += (output.argmax(1) == target).float().sum().item()
    # A worker sees its part of the test set alone, so the sampler's length counts.
    loss = metric_average(total_loss / len(sampler), "avg_loss")
    accuracy = metric_average(right / len(sampler), "avg_accuracy")
    if hvd.rank() == 0:
        print(f"test: loss {loss:.4f}, accuracy {accuracy:.2%}")
    return loss, accuracy


def main():
    args = parser.parse_args()
    args.cuda = not args.no_cuda and torch.cuda.is_available()

    hvd.init()
    torch.manual_seed(args.seed)
    if args.cuda:
        torch.cuda.set_device(hvd.local_rank())
        torch.cuda.manual_seed(args.seed)
    torch.set_num_threads(1)

    train_set, test_set = load(args.data)
    train_sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
    train_loader = DataLoader(train_set, batch_size=args.batch_size, sampler=train_sampler)
    test_sampler = DistributedSampler(test_set, num_replicas=hvd.size(), rank=hvd.rank())
    test_loader = DataLoader(test_set, batch_size=args.test_batch_size, sampler=test_sampler)

    model = Net(args.sync_bn)
    # Adasum needs no larger rate; with a GPU and NCCL it adds up inside a node.
    lr_scaler = hvd.size() if not args.use_adasum else 1
    if args.cuda:
        model.cuda()
        if args.use_adasum and hvd.nccl_built():
            lr_scaler = hvd.local_size()

    optimizer = optim.SGD(model.parameters(), lr=args.lr * lr_scaler, momentum=args.momentum)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=compression,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        gradient_predivide_factor=args.gradient_predivide_factor)

    losses, tests = [], []
    for epoch in range(1, args.epochs + 1):
        losses += train(epoch, model, optimizer, train_loader, train_sampler, args)
        tests.append(test(model, test_loader, test_sampler, args))
        scheduler.step()

    if args.report and hvd.rank() == 0:
        with open(args.report, "w", encoding="ascii") as file:
            json.dump({"losses": losses, "tests": tests, "lr": optimizer.param_groups[0]["lr"],
                       "import": hvd.__name__, "workers": hvd.size()}, file)
    hvd.shutdown()


if __name__ == "__main__":
    main()
