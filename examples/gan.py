"""Two models, two optimizers: a small generative adversarial network that draws digits.

    phalanx run examples/gan.py --workers 2

It leaves 64 drawings of 8×8 pixels in the run's folder (`files/drawings.pgm`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import phalanx

NOISE = 32


def make_generator() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(NOISE, 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.Sigmoid(),
        nn.Unflatten(1, (1, 8, 8)),
    )


def make_discriminator() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))


def as_picture(images: Tensor) -> bytes:
    """64 images as one grey picture (PGM)."""
    rows = images.view(8, 8, 8, 8).permute(0, 2, 1, 3).reshape(64, 64)
    return b"P5 64 64 255\n" + (rows * 255).byte().cpu().numpy().tobytes()


def main() -> None:
    train, _ = phalanx.data.load("digits")
    generator, discriminator = make_generator(), make_discriminator()
    g_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    d_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    loss = nn.BCEWithLogitsLoss()
    judged = fooled = torch.zeros(())  # a slow worker may be given no batch in an epoch

    run = phalanx.join([generator, discriminator], [g_optimizer, d_optimizer])
    for _ in run.epochs(40):
        for x, _y in run.batches(train, batch=64):
            ones, zeros = x.new_ones(len(x), 1), x.new_zeros(len(x), 1)
            drawn = generator(torch.randn(len(x), NOISE, device=x.device))
            d_optimizer.zero_grad()  # the generator's last lesson left gradients here too
            judged = loss(discriminator(x), ones) + loss(discriminator(drawn.detach()), zeros)
            run.backward(judged)
            run.step(d_optimizer)

            fooled = loss(discriminator(drawn), ones)
            run.backward(fooled)
            run.step(g_optimizer)
        run.log(judged=judged.item(), fooled=fooled.item())
    if run.is_first:
        with torch.no_grad():
            drawings = generator(torch.randn(64, NOISE, device=run.device))
        (run.folder / "drawings.pgm").write_bytes(as_picture(drawings))


if __name__ == "__main__":
    main()
