"""TensorBoard event files made from metrics.jsonl, so that one log serves both."""

from pathlib import Path

from detkit.train.plots import read_metrics


def write_events(folder: Path) -> Path:
    """Write the scalars of metrics.jsonl as events below `folder`/tensorboard and return that folder."""
    from torch.utils.tensorboard import SummaryWriter

    target = folder / "tensorboard"
    for stale in target.glob("events.*"):
        stale.unlink()
    with SummaryWriter(str(target)) as writer:
        for row in read_metrics(folder):
            for name, value in row.items():
                if name != "epoch":
                    writer.add_scalar(name.replace("_", "/", 1), value, row["epoch"])
    return target
