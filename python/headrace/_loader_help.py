"""What help(headrace.Loader) says of its keywords, from the list that recipes, flags and documents have, too."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping

from ._loader_options import DATA, SOURCE, TRANSFORM, Option

_WIDTH = 110
# Keywords that are no key of [data].
OF_PYTHON: dict[str, Option] = {
    "split": Option("train", "train | val | test",
        "Which samples of the source. An object of your own is read whole as any of them, but with val_fraction above 0, which "
        "parts it into train and val."),
    "training": Option(None, "True or False",
        "Whether shuffle and random transforms are on; not given, they are where split is train."),
    "seed": Option(0, "from 0",
        "What the order and the random transforms are drawn from, with the epoch and the sample."),
    "batch_sampler": Option(None, "",
        "Lists of indices, as a DataLoader takes them. sampler takes indices, too, beside the names above."),
    "length": Option(None, "from 0",
        "Samples of an epoch, where an iterable data set does not tell."),
    "fields": Option(None, "",
        'Of an object of your own: the names of a tuple\'s fields, ("image", "boxes"), or what some of them are, '
        '{"boxes": headrace.Field("float32", (-1, 4))}.'),
    "collate_fn": Option(None, "",
        "Called with a list of the samples of a batch, those left out that do not count; what it returns is the batch."),
    "worker_type": Option("thread", "thread | process",
        "What calls an object of your own num_workers times at once: threads under the GIL, or processes of their own."),
    "worker_timeout_s": Option(300.0, "above 0",
        "Seconds after which a worker process that does not answer is replaced."),
    "worker_init_fn": Option(None, "",
        "Called with its number, from 0, in each worker process before the source is read there, a replacement's with the number "
        "of the one that it replaces. Where threads load it is refused."),
    "persistent_workers": Option(True, "True or False",
        "False gives each epoch threads and processes of its own."),
    "enable_async_data_loading": Option(True, "True or False",
        "False lets request() wait for the batch."),
    "drop_last": Option(None, "True or False",
        "A DataLoader's name for last_batch: drop or keep."),
    "prefetch_factor": Option(None, "",
        "A DataLoader's way to say prefetch_batches: so many for each worker."),
    "pin_memory": Option(False, "True or False",
        "Batches lie in page-locked memory, but for fields whose samples differ in size. Without CUDA, and where CUDA refuses it, it "
        "changes nothing; not_applied says why. Later Loaders of the process have such memory, too."),
}


def signature() -> inspect.Signature:
    """Of Loader.__init__, with every keyword and its default."""
    places = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
              inspect.Parameter("source", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    defaults = {key: option.default for key, option in {**OF_PYTHON, **DATA}.items()} | {"transform": None}
    return inspect.Signature([*places, *(inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default)
                                         for key, default in defaults.items())])


def docstring(of_native_class: str | None, added: str) -> str:
    """Of Loader: its native class', what Python adds, and the keywords."""
    return "\n\n".join([of_native_class or "", inspect.cleandoc(added), _keywords_text()])


def _keywords_text() -> str:
    transform = Option(None, "", "A dict of what follows, in the place of transforms; a key that is left out has its default.")
    return "\n".join([
        *_wrapped(f"source, where it is a text: {SOURCE}", 0, hanging=4), "",
        "Keywords, each with its default and in brackets what it may be. Those of a recipe's [data]:", "", *_listed(DATA, 0),
        *_listed({"transform": transform}, 0), *_listed(TRANSFORM, 4), "", "and those of Python:", "", *_listed(OF_PYTHON, 0)])


def _listed(options: Mapping[str, Option], indent: int) -> Iterator[str]:
    for key, option in options.items():
        bounds = f" [{option.range}]" if option.range else ""
        yield from _wrapped(f"{key}={option.default!r}: {option.sentence}{bounds}", indent, hanging=4)


def _wrapped(line: str, indent: int, hanging: int = 0) -> list[str]:
    return textwrap.wrap(line, _WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + hanging),
                         break_long_words=False, break_on_hyphens=False)
