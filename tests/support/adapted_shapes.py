"""Ordinary training scripts in the shapes that people write, each with its data and model."""

from __future__ import annotations

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
x = torch.randn(70, 6)
y = (x.sum(1) > 0).long()
train_loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
test_loader = DataLoader(TensorDataset(x, y), batch_size=35)


def make():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))

"""

FUNCTION = (
    HEAD
    + """
def train(model, loader, optimizer, epoch):
    model.train()
    for i, (a, b) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()  # the update
    print(epoch, loss.item())


def test(model, loader):
    model.eval()
    with torch.no_grad():
        return sum((model(a).argmax(1) == b).sum().item() for a, b in loader)


def main():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for epoch in range(1, 3):
        train(model, train_loader, optimizer, epoch)
        test(model, test_loader)
        scheduler.step()


if __name__ == "__main__":
    main()
"""
)

MAIN = (
    HEAD
    + """
def main(epochs=2):
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    # Train.
    for epoch in range(epochs):
        for a, b in train_loader:
            loss = nn.functional.cross_entropy(model(a), b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


main()
"""
)

MODULE = (
    HEAD
    + """
model = make()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(2):
    for number, batch in enumerate(train_loader, 1):
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        loss.backward()
        optimizer.step(); optimizer.zero_grad()
"""
)

TRAINER = (
    HEAD
    + """
class Trainer:
    def __init__(self):
        self.model = make()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader = train_loader

    def one_epoch(self):
        for a, b in self.loader:
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.model(a), b).backward()
            self.optimizer.step()

    def fit(self, epochs):
        for _ in range(epochs):
            self.one_epoch()


Trainer().fit(2)
"""
)

GAN = (
    HEAD
    + """
maker, judge = nn.Linear(6, 6), make()
opt_judge = torch.optim.SGD(judge.parameters(), lr=0.1)
opt_maker = torch.optim.SGD(maker.parameters(), lr=0.1)
for epoch in range(2):
    for i, (a, b) in enumerate(train_loader):
        judge.zero_grad()
        made = maker(a)
        nn.functional.cross_entropy(judge(a), b).backward()
        nn.functional.cross_entropy(judge(made.detach()), 1 - b).backward()
        opt_judge.step()
        maker.zero_grad()
        nn.functional.cross_entropy(judge(made), b).backward()
        opt_maker.step()
"""
)

SCALER = (
    HEAD
    + """
def main():
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for epoch in range(2):
        for a, b in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(a), b)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()


main()
"""
)

ACCUMULATION = (
    HEAD
    + """
model = make()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for i, (a, b) in enumerate(train_loader):
        (nn.functional.cross_entropy(model(a), b) / 3).backward()
        if (i + 1) % 3 == 0 or i + 1 == len(train_loader):
            optimizer.step()
            optimizer.zero_grad()
"""
)

BAR = (
    HEAD
    + """
from tqdm import tqdm

model = make()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    bar = tqdm(enumerate(train_loader), total=len(train_loader))
    for i, (a, b) in bar:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()
"""
)

CLIP = (
    HEAD
    + """
def main():
    model = make()
    models = {"net": model}
    optimizers = {"all": torch.optim.SGD(model.parameters(), lr=0.1)}
    optimizer = optimizers["all"]
    for epoch in range(2):
        for a, b in train_loader:
            optimizers["all"].zero_grad()
            nn.functional.cross_entropy(models["net"](a), b).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizers["all"].step()


main()
"""
)

CYCLE = (
    HEAD
    + """
def forever(loader):
    while True:
        yield from loader


def cycle(loader):
    while True:
        for batch in loader:
            yield batch


model = make()
optimizers = [
    torch.optim.SGD(model[0].parameters(), lr=0.1),
    torch.optim.SGD(model[2].parameters(), lr=0.2),
]
batches = cycle(train_loader)
for step in range(20):
    a, b = next(batches)
    nn.functional.cross_entropy(model(a), b).backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
"""
)

NESTED = (
    HEAD
    + """
def main():
    def one(a, b):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(a), b).backward()
        optimizer.step()

    model, epoch = make(), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while epoch < 2:
        for a, b in train_loader:
            one(a, b)
        epoch += 1


main()
"""
)

SHAPES = {
    "function": FUNCTION, "main": MAIN, "module": MODULE, "trainer": TRAINER, "gan": GAN,
    "scaler": SCALER, "accumulation": ACCUMULATION, "bar": BAR, "clip": CLIP,
    "cycle": CYCLE, "nested": NESTED,
}  # fmt: skip

TQDM = """\
class tqdm:
    def __init__(self, iterable, total=None):
        self.iterable = iterable

    def __iter__(self):
        for thing in self.iterable:
            yield thing
"""
