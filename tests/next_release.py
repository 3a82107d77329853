"""A release of SGLang that does not exist: the installed one, with hooked functions changed as releases do.

    python -m tests.next_release FOLDER

writes it into FOLDER. ``PYTHONPATH=FOLDER sglang-adaptive doctor`` and every other command then run on it. Folders and
files that are the same are links, so it takes a second and a megabyte.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sglang_adaptive.sglang_plugin import bodies

RELEASE = "0.5.99"
SRT = "sglang/srt/"
EAGLE = SRT + "speculative/eagle_utils.py"
WORKER = SRT + "speculative/eagle_worker_v2.py"
SCHEDULER = SRT + "managers/scheduler.py"
RESULTS = SRT + "managers/scheduler_components/batch_result_processor.py"


class Copy:
    """A copy of the installed SGLang that is a link where nothing has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._installed = folder, bodies.installed()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sglang").symlink_to(self._installed / "sglang")

    def read(self, file: str) -> str:
        """Return the text of a file, named from the folder that has the package."""
        return (self.folder / file).read_text(encoding="utf-8")

    def write(self, file: str, text: str) -> None:
        """Write a file of the copy; the installed one stays."""
        self._free(file).write_text(text, encoding="utf-8")

    def edit(self, file: str, old: str, new: str, times: int = 1) -> None:
        """Replace *old*, which the file has *times*."""
        text = self.read(file)
        assert text.count(old) == times, f"{file} has {text.count(old)} of {old!r}"
        self.write(file, text.replace(old, new))

    def rename(self, old: str, new: str) -> None:
        """Replace the word *old* in every file."""
        word = re.compile(rf"\b{re.escape(old)}\b")
        files = [path for part in ("srt", "kernels") for path in (self._installed / "sglang" / part).rglob("*.py")]
        found = [path.relative_to(self._installed).as_posix() for path in files if old.encode() in path.read_bytes()]
        assert found, old
        for file in found:
            self.write(file, word.sub(new, self.read(file)))

    def move(self, file: str, new: str) -> None:
        """Move a module; who imports it is left to `rename`."""
        self.write(new, self.read(file))
        self._free(file)

    def _free(self, file: str) -> Path:
        """Return the path of a file after deleting it, in folders of the copy alone; the installed one stays."""
        path = self.folder / file
        for parent in reversed(path.relative_to(self.folder).parents[:-1]):
            self._unfold(self.folder / parent)
        self._unfold(path.parent / "__pycache__")  # else Python would write there beside the installed files
        assert not path.parent.resolve().is_relative_to(self._installed / "sglang")
        path.unlink(missing_ok=True)
        return path

    def _unfold(self, folder: Path) -> None:
        """Make a folder of links of what is a link to a folder."""
        if folder.is_symlink():
            there = folder.resolve()
            folder.unlink()
            folder.mkdir()
            for each in there.iterdir():
                (folder / each.name).symlink_to(each)


# -- what changes ---------------------------------------------------------------------------------------------------


def renamed(old: str, new: str) -> Callable[[Copy], None]:
    return lambda copy: copy.rename(old, new)


def move_function(copy: Copy) -> None:
    """From a module into a new one, which its callers import."""
    text = copy.read(EAGLE)
    tree = ast.parse(text)
    (function,) = (one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "eagle_sample")
    source = ast.get_source_segment(text, function)
    assert source is not None
    copy.write(EAGLE, text.replace(source, ""))
    used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    own = {one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)}
    own |= {name.id for one in tree.body if isinstance(one, ast.Assign) for name in one.targets if hasattr(name, "id")}
    start = next(one for one in tree.body if isinstance(one, ast.Assign)).lineno
    head = "".join(text.splitlines(keepends=True)[: start - 1])
    shared = f"from sglang.srt.speculative.eagle_utils import {', '.join(sorted(used & own))}\n"
    copy.write(SRT + "speculative/eagle_sampling.py", f"{head}{shared}\n\n{source}\n")
    moved = "from sglang.srt.speculative.eagle_sampling import eagle_sample\n"
    common = SRT + "speculative/eagle_worker_common.py"
    copy.edit(common, "    eagle_sample,\n", "")
    copy.edit(
        common,
        "from sglang.srt.speculative.eagle_utils import (\n",
        f"{moved}from sglang.srt.speculative.eagle_utils import (\n",
    )
    copy.edit(
        SRT + "speculative/ngram_worker.py", "from sglang.srt.speculative.eagle_utils import eagle_sample\n", moved
    )


def move_module(copy: Copy) -> None:
    copy.move(SRT + "managers/scheduler_components/weight_updater.py", SRT + "managers/weight_updates.py")
    copy.edit(
        SCHEDULER,
        "sglang.srt.managers.scheduler_components.weight_updater import",
        "sglang.srt.managers.weight_updates import",
    )


def give_a_parameter(copy: Copy) -> None:
    """Callers pass it."""
    copy.edit(
        SCHEDULER,
        "def _forward_isolation(self, batch: ScheduleBatch, *, overlap: bool)",
        "def _forward_isolation(self, batch: ScheduleBatch, *, overlap: bool, forward_ct: int)",
    )
    for overlap, times in (("True", 1), ("False", 2)):
        call = f"self._forward_isolation(batch, overlap={overlap}"
        copy.edit(SCHEDULER, f"{call})", f"{call}, forward_ct=self.forward_ct)", times)


def swap_parameters(copy: Copy) -> None:
    text = copy.read(RESULTS)
    head = re.search(r"def _resolve_spec_v2_tokens\(\s*self,\s*(result: [^,]+),\s*(batch: [^,]+),\s*\)", text)
    assert head is not None, "the function begins otherwise"
    copy.write(RESULTS, text.replace(head[0], f"def _resolve_spec_v2_tokens(self, {head[2]}, {head[1]})"))
    copy.edit(RESULTS, "self._resolve_spec_v2_tokens(result, batch)", "self._resolve_spec_v2_tokens(batch, result)")


@dataclass(frozen=True)
class Change:
    """A change of SGLang, and how the verdict has to name it."""

    make: Callable[[Copy], None]
    target: str
    """The hooked function, below ``sglang.srt``, or the class of several."""

    seam: str
    ours: Mapping[str, str]
    """Our function in the seam by the end of SGLang's name: empty for the target itself."""

    problem: str = "is missing"

    @property
    def named(self) -> list[str]:
        """The beginning of each phrase of the verdict."""
        return [
            f"sglang.srt.{self.target}{name} ({self.seam}: {ours}) {self.problem}" for name, ours in self.ours.items()
        ]


_WEIGHTS = ("update_weights_from_disk", "update_weights_from_ipc", "end_weight_update")
_STATE = ("get_internal_state", "set_internal_state", "update_handlers")
_PUBLIC = ("get_internal_state", "set_internal_state")
_SCHEDULING, _WORKER = "seams/scheduling.py", "seams/worker.py"
CHANGES = (
    Change(
        renamed("page_aligned_decode_alloc_lens", "decode_alloc_lens_of_pages"),
        "speculative.eagle_utils.page_aligned_decode_alloc_lens", _SCHEDULING, {"": "Stage.decode_alloc_lens"},
    ),
    Change(
        renamed("_build_trivial_verify_input", "_build_zero_step_verify_input"),
        "speculative.eagle_worker_v2.EAGLEWorkerV2._build_trivial_verify_input", _WORKER, {"": "Stage.zero_step_input"},
    ),
    Change(
        renamed("SchedulerInternalStateController", "InternalStateController"),
        "managers.scheduler_components.internal_state.SchedulerInternalStateController",
        "seams/state.py", {f".{'' if name in _PUBLIC else '_'}{name}": name for name in _STATE},
    ),
    Change(move_function, "speculative.eagle_utils.eagle_sample", _WORKER, {"": "Stage.sample"}),
    Change(
        move_module, "managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager", _SCHEDULING,
        {
            ".begin_weight_update": "Stage.begin_weight_update",
            **{f".{name}": "Stage.update_weights" for name in _WEIGHTS},
        },
    ),
    Change(
        give_a_parameter, "managers.scheduler.Scheduler._forward_isolation", _SCHEDULING, {"": "Stage.isolate"},
        "also takes forward_ct, and our function does not",
    ),
    Change(
        renamed("grammar_barrier", "grammar_sync"), "speculative.eagle_worker_v2.EAGLEWorkerV2.verify", _WORKER,
        {"": "Stage.verify"}, "has no grammar_barrier",
    ),
    Change(
        swap_parameters,
        "managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor._resolve_spec_v2_tokens",
        _SCHEDULING, {"": "Stage.resolve"}, "takes its parameters in another order: self, batch, result",
    ),
    Change(
        renamed("draft_extend_set_metadata", "set_draft_extend_metadata"),
        "layers.attention.flashattention_backend.draft_extend_set_metadata", "seams/attention.py",
        {"": "Stage.fa3_extend_metadata"},
    ),
)  # fmt: skip
"""Nine hooked functions, or classes or modules with several, which were renamed, moved, or got other parameters."""


def write(folder: Path, changes: Sequence[Change] = CHANGES) -> Path:
    """Write the release with *changes* into *folder*, which must not have it yet, and return the folder."""
    copy = Copy(folder)
    for change in changes:
        change.make(copy)
    version = copy.read("sglang/_version.py")
    copy.write("sglang/_version.py", re.sub(r"(__version__ = version = )'[^']+'", rf"\1'{RELEASE}'", version))
    (about,) = bodies.installed().glob("sglang-*.dist-info")
    own = folder / f"sglang-{RELEASE}.dist-info"
    own.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        text = (about / name).read_text(encoding="utf-8")
        (own / name).write_text(re.sub(r"^Version: .*$", f"Version: {RELEASE}", text, flags=re.M), encoding="utf-8")
    return folder


if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
