"""How far the pull of an image is, from the engine's lines about its layers."""

from typing import Any

from agents.runtimes import UnableToStart


class Pull:
    """The layers of one image on their way."""

    def __init__(self, image: str) -> None:
        self._image = image
        self._layers: dict[str, tuple[int, int]] = {}
        self._told = 0

    def take(self, line: dict[str, Any]) -> int | None:
        """Take in one line; return the percentage if it has grown.

        Raises `UnableToStart` if the line tells of a failure.
        """
        if line.get("error"):
            raise self.failed(str(line["error"]))
        layer, status = line.get("id"), line.get("status")
        detail = line.get("progressDetail") or {}
        if layer and detail.get("total"):
            if status == "Downloading":
                self._layers[layer] = (int(detail.get("current", 0)), int(detail["total"]))
        elif layer in self._layers and status in ("Download complete", "Pull complete"):
            self._layers[layer] = (self._layers[layer][1], self._layers[layer][1])
        total = sum(size for _, size in self._layers.values())
        if not total:
            return None
        # More layers may become known, so the figure never goes back and ends at 99.
        percent = min(99, sum(done for done, _ in self._layers.values()) * 100 // total)
        if percent <= self._told:
            return None
        self._told = percent
        return percent

    def failed(self, words: str) -> UnableToStart:
        """Return the refusal in words."""
        if "no space left" in words.lower():
            return UnableToStart(
                "disk_full", f'The node\'s disk is too full for the image "{self._image}".'
            )
        return UnableToStart(
            "image_missing",
            f'The image "{self._image}" is not on this node and can\'t be pulled: {words[:400]}',
        )
