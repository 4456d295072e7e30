"""What MkDocs cannot do by itself: pages and pictures of the site that lie outside `docs`.

Links in the pages are those of the repository, so that they also work where the files are read as they are. Here, a
picture below `results` becomes a part of the site, and a link to any other file outside `docs` one to its place on
GitHub. A link to a file that does not exist is left as it is, and the build names it.
"""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/bipars/bipars"
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}
"""Files outside `docs` that are pages of the site, and their names there. The first page is the site's README."""
LINK = re.compile(r"(?<=\]\()(?P<path>[^)#\s:]+)(?P<anchor>#[^)\s]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, page in OUTSIDE.items():
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    for file in files.documentation_pages():
        for found in LINK.finditer(file.content_string):
            path = in_repository(file.src_uri, found["path"])
            if is_picture(path) and files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri

    def link(found: re.Match[str]) -> str:
        path, anchor = in_repository(here, found["path"]), found["anchor"] or ""
        place = ROOT / path
        if path.startswith("docs/"):
            inside = path.removeprefix("docs/")
        elif path in OUTSIDE or is_picture(path):
            inside = OUTSIDE.get(path, path)
        elif place.exists():
            return f"{REPOSITORY}/{'tree' if place.is_dir() else 'blob'}/main/{path}{anchor}"
        else:
            return found[0]
        return os.path.relpath(inside, os.path.dirname(here) or ".") + anchor

    return LINK.sub(link, markdown)


def in_repository(page: str, path: str) -> str:
    """What a link on a page of the site points to, from the root of the repository."""
    directory = "" if page in ("contributing.md", "changelog.md") else os.path.dirname(f"docs/{page}")
    return os.path.normpath(os.path.join(directory, path))


def is_picture(path: str) -> bool:
    return path.startswith("results/") and path.endswith((".png", ".svg")) and (ROOT / path).exists()
