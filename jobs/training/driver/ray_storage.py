"""An object store for Ray Train's own few files.

Ray Train creates a folder before it writes. In a store that means an empty object named `folder/`,
which stores that keep folders on a disk refuse if the folder exists already. Nothing needs these
objects, so creating a folder does nothing here.
"""

from typing import Any

from pyarrow import fs


class WithoutFolders(fs.FileSystemHandler):  # type: ignore[misc]
    """Passes on every operation except the creation of folders."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WithoutFolders) and self._store == other._store

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def create_dir(self, path: str, recursive: bool) -> None:
        """Do nothing: a folder exists as soon as it has a file."""

    def get_type_name(self) -> str:
        return f"{self._store.type_name} without folders"

    def normalize_path(self, path: str) -> str:
        return str(self._store.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> Any:
        return self._store.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        return self._store.get_file_info(selector)

    def delete_dir(self, path: str) -> None:
        self._store.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        self._store.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise PermissionError("the whole store is never emptied")

    def delete_file(self, path: str) -> None:
        self._store.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        self._store.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        self._store.copy_file(src, dest)

    def open_input_stream(self, path: str) -> Any:
        return self._store.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        return self._store.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return self._store.open_output_stream(path, metadata=metadata)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        return self._store.open_append_stream(path, metadata=metadata)
