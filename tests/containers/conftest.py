"""The image, truly built here: no registry, on a base made from Debian's packages.

`make container-test` runs this. Everything lies in one folder (``--container-cache``) and is used
again by the next run; without ``--build-containers`` only the recipes' texts are tested.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "containers/Containerfile"
RELEASES = {(3, 11): "bookworm", (3, 13): "trixie"}
"""Debian's releases by their Python: wheels that are built here must suit the image."""

OUT_OF_REACH = re.compile(
    "Temporary failure resolving|Could not resolve|Could not connect|Cannot initiate the connection"
    "|Unable to connect|Connection timed out|Network is unreachable"
)
"""What apt says of a network that it cannot reach."""

CACHE = "/var/tmp/scalefold-containers"
BASE, IMAGE = "localhost/scalefold-base", "localhost/scalefold"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("containers")
    group.addoption("--build-containers", action="store_true", help="build the image, and run it")
    group.addoption("--container-cache", default=CACHE, help="folder of all that is built")


@dataclass(frozen=True)
class Workshop:
    """The folder in which things are built, and the tools that build them."""

    cache: Path

    def run(self, *command: str | Path, log: str, **options: object) -> str:
        """Standard output of a command that must succeed; all it says is in ``logs/<log>.log``."""
        path = self.cache / "logs" / f"{log}.log"
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as stream:
            start = stream.tell()
            print("$", *command, file=stream, flush=True)
            done = subprocess.run(
                ["nice", *map(str, command)],
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                check=False,
                **options,  # type: ignore[call-overload]
            )
            stream.write(done.stdout)
        if done.returncode:
            tail = "\n".join(path.read_bytes()[start:].decode(errors="replace").splitlines()[-60:])
            raise RuntimeError(f"{command[0]} exited with {done.returncode} ({path}):\n{tail}")
        return done.stdout.strip()

    def buildah(self, *arguments: str | Path, log: str = "buildah") -> str:
        """Buildah with images and containers of its own."""
        folders = ("--root", self.cache / "storage", "--runroot", self.cache / "run")
        return self.run("buildah", *folders, *arguments, log=log)

    def debian(self, release: str, target: Path, *packages: str) -> None:
        """A minimal Debian as a folder or tar file; a skipped test if no packages are in reach."""
        # Signatures are checked, dates are not: clocks differ, and snapshots of archives are old.
        dates = ("Acquire::Check-Valid-Until", "Acquire::Check-Date")
        options = [f'--aptopt={name} "false"' for name in dates]
        if packages:
            options.append(f"--include={','.join(packages)}")
        try:
            self.run("mmdebstrap", "--variant=apt", *options, release, target, log=release)
        except RuntimeError as error:
            shutil.rmtree(target, ignore_errors=True)
            if OUT_OF_REACH.search(str(error)) is None:
                raise
            pytest.skip(f"no packages of Debian {release} can be had here: {error}")


@pytest.fixture(scope="session")
def workshop(request: pytest.FixtureRequest) -> Iterator[Workshop]:
    """The cache folder, used by one run at a time; afterwards nothing in it is mounted."""
    if not request.config.getoption("--build-containers", default=False):
        pytest.skip("make container-test builds the image and runs it")
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("building needs root on Linux: sudo make container-test")
    for tool in ("buildah", "mmdebstrap", "unshare"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here (Debian, Ubuntu: apt install buildah mmdebstrap)")
    if sys.version_info[:2] not in RELEASES:
        known = ", ".join(f"{major}.{minor}" for major, minor in RELEASES)
        pytest.skip(f"Python {platform.python_version()}: the image is tested with {known}")
    cache = Path(request.config.getoption("--container-cache")).resolve()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pytest.skip(f"another run uses {cache}")
        workshop = Workshop(cache)
        workshop.buildah("rm", "--all")  # of a run that was killed
        yield workshop
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    assert not [mount for mount in mounts if Path(mount).is_relative_to(cache)]


@pytest.fixture(scope="session")
def base(workshop: Workshop) -> str:
    """A Debian with nothing but apt, in the place of the published image's base."""
    if not workshop.buildah("images", "--quiet", "--filter", f"reference={BASE}"):
        tar = workshop.cache / "base.tar"
        workshop.debian(RELEASES[sys.version_info[:2]], tar)
        started = workshop.buildah("from", "scratch")
        workshop.buildah("add", started, tar, "/")
        workshop.buildah("commit", started, BASE)
        workshop.buildah("rm", started)
        tar.unlink()
    return BASE


@pytest.fixture(scope="session")
def wheels(workshop: Workshop) -> Path:
    """All dependencies, found by this machine's pip settings: these stay outside the image."""
    inputs = [ROOT / "pyproject.toml", ROOT / "envs/constraints.txt"]
    content = b"".join(path.read_bytes() for path in inputs) + sys.version.encode()
    folder = workshop.cache / "wheels" / hashlib.sha256(content).hexdigest()[:12]
    if not folder.is_dir():
        shutil.rmtree(folder.parent, ignore_errors=True)
        # Layers of other dependencies are of no more use either.
        workshop.buildah("rmi", "--all", "--force")
        project = tomllib.loads(inputs[0].read_text("utf-8"))["project"]
        direct = [*project["dependencies"], *project["optional-dependencies"]["workflow"]]
        wanted = [line for line in direct if not line.startswith("scalefold-kernels")]
        making = folder.with_suffix(".tmp")
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", making)
        workshop.run(*pip, "--constraint", inputs[1], *wanted, log="wheels")
        making.rename(folder)
    return folder


@pytest.fixture(scope="session")
def image(workshop: Workshop, wheels: Path, base: str) -> str:
    """Name of the built image."""
    settings = workshop.cache / "pip.conf"
    settings.write_text("[global]\nno-index = true\nfind-links = /run/wheels\n")
    workshop.buildah(
        *("bud", "--isolation", "chroot", "--layers", "--tag", IMAGE),
        *("--build-arg", f"BASE={base}", "--build-arg", "VERSION=1.2.3"),
        *("--secret", f"id=pip,src={settings}", "--volume", f"{wheels}:/run/wheels:ro"),
        *("--file", CONTAINERFILE, ROOT),
        log="image",
    )
    return IMAGE


@pytest.fixture(scope="session")
def inside(workshop: Workshop, image: str) -> Iterator[Callable[..., str]]:
    """Run a command in a container of the image, the repository being /source; its output."""
    yield from container(workshop, image, "--volume", f"{ROOT}:/source:ro")


@pytest.fixture
def untouched(workshop: Workshop, image: str) -> Iterator[Callable[..., str]]:
    """Run a command in a container of the image in which nothing has run yet; its output."""
    yield from container(workshop, image)


def container(workshop: Workshop, image: str, *options: str) -> Iterator[Callable[..., str]]:
    name = workshop.buildah("from", image)

    def run(*command: str, user: str | None = None) -> str:
        as_user = () if user is None else ("--user", user)
        return workshop.buildah(
            *("run", "--isolation", "chroot", *options, *as_user, name, "--", *command),
            log="inside",
        )

    yield run
    workshop.buildah("rm", name)


@pytest.fixture(scope="session")
def apptainer(workshop: Workshop) -> Path:
    """Apptainer's program: this machine's, or Debian's in a tree of its own."""
    if installed := shutil.which("apptainer"):
        return Path(installed)
    tree = workshop.cache / "sid"
    if not (tree / "usr/bin/apptainer").exists():
        workshop.debian("sid", tree, "apptainer", "squashfuse", "mount")
        for name in ("hosts", "localtime"):  # Apptainer hands these on
            shutil.copy(f"/etc/{name}", tree / "etc" / name)
    program = workshop.cache / "bin/apptainer"
    program.parent.mkdir(exist_ok=True)
    shutil.copy(Path(__file__).with_name("apptainer.sh"), program)
    return program


@pytest.fixture(scope="session")
def sif(workshop: Workshop, wheels: Path, base: str, apptainer: Path) -> Path:
    """A SIF file, from its base by the Apptainer definition."""
    file = workshop.cache / "scalefold.sif"
    scratch = workshop.cache / "scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    archive = scratch / "base.tar"
    workshop.buildah("push", base, f"docker-archive:{archive}:{base}")
    # While it is built, only a folder that the base has can be bound.
    (wheels / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /mnt\n")
    arguments = {
        "BOOTSTRAP": "docker-archive",
        "BASE": archive,
        "VERSION": "1.2.3",
        "PIP_CONFIG": "/mnt/pip.conf",
    }
    options = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    workshop.run(
        *(apptainer, "build", "--force", "--notest", "--mksquashfs-args"),
        *("-Xcompression-level 1", *options, f"--bind={wheels}:/mnt:ro"),
        *(file, "containers/scalefold.def"),
        log="sif",
        cwd=ROOT,
        env={**os.environ, "APPTAINER_TMPDIR": str(scratch)},
    )
    shutil.rmtree(scratch)
    return file
