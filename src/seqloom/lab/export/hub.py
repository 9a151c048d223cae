"""Models on the Hugging Face hub: `push_to_hub` and `from_pretrained`, by huggingface_hub's mixin."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from seqloom.core.errors import UserError, require
from seqloom.lab.data.pipeline.new_rows import iterate_rows
from seqloom.lab.data.task import DataSource, Task
from seqloom.lab.export.hub_folder import CONFIG, read_hub_folder
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.training.predict import predict_pieces

if TYPE_CHECKING:
    from huggingface_hub import ModelHubMixin
else:
    ModelHubMixin = require("huggingface_hub", "a model hub", "hub").ModelHubMixin


class Pretrained(ModelHubMixin, library_name="seqloom"):
    """A trained model from a folder of `seqloom export RUN --to safetensors`, or from the Hugging Face hub.

    Args:
        folder: The folder. `from_pretrained` takes a folder or the name of a repository.

    Raises:
        UserError: If the folder does not hold such a model.

    Example:
        `Pretrained.from_pretrained("exports/reviews-safetensors").predict(["a joyous film"])` returns
        `[{"prediction": "positive", "probability": 0.93}]`, and `.push_to_hub("me/reviews")` publishes the folder.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.model: ForTask
        self.task: Task
        self.model, self.task = read_hub_folder(self.folder)

    def predict(self, rows: DataSource | Iterable[Any], probabilities: bool = False) -> list[dict[str, Any]]:
        """Return a prediction for each row, as `Run.predict` does.

        Args:
            rows: Inputs, dicts of columns, a frame, or a file in a format that training reads.
            probabilities: Whether to return the probabilities of all classes.
        """
        return list(predict_pieces(self.model, self.task, iterate_rows(self.task, rows), probabilities))

    def _save_pretrained(self, save_directory: Path) -> None:
        """Copy the files; called by `save_pretrained` and `push_to_hub`."""
        shutil.copytree(self.folder, save_directory, dirs_exist_ok=True)

    @classmethod
    def from_pretrained(cls, name: Path | str, **options: Any) -> Self:  # type: ignore[override]  # noqa: ANN401
        """Read a model from a folder, or download it from the hub.

        Args:
            name: A folder, or a repository such as me/reviews.
            **options: `revision`, `token`, `cache_dir`, `local_files_only` and others of huggingface_hub.

        Raises:
            UserError: If there is no such folder, or it does not hold a model.
        """
        path = Path(name)
        if not path.is_dir() and (path.is_absolute() or str(name).startswith(".") or str(name).count("/") > 1):
            raise UserError(f"there is no folder {name}; give a folder, or a repository such as me/reviews")
        return super().from_pretrained(str(name), **options)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        **model_kwargs: object,  # noqa: ARG003  # of the mixin; a model here has no options
    ) -> Self:
        folder = Path(model_id)
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            folder = Path(
                snapshot_download(
                    model_id,
                    revision=revision,
                    cache_dir=cache_dir,
                    force_download=force_download,
                    local_files_only=local_files_only,
                    token=token,
                )
            )
        if not (folder / CONFIG).is_file():
            raise UserError(f"{folder} has no {CONFIG}; write one with `seqloom export RUN --to safetensors`")
        return cls(folder)
