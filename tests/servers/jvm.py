"""Servers from Maven Central: their jars, resolved once into `.servers/`, and how to run them quickly."""

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers import ServerMissingError, needs, program
from tests.servers.process import ServerProcess

HERE = needs.HERE
CACHE = needs.CACHE
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
# A server that lives for seconds gains nothing from the second compiler and from parallel collectors.
FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m")
_LOGGER = "-Dorg.slf4j.simpleLogger"
QUIET_LOG = (  # Artemis would log every connection and every call of its own
    f"{_LOGGER}.showDateTime=true",
    f"{_LOGGER}.dateTimeFormat=HH:mm:ss.SSS",
    f"{_LOGGER}.showThreadName=false",
    f"{_LOGGER}.log.org.apache.activemq.audit=warn",
)


@dataclass(frozen=True)
class Jars:
    """What `<name>.pom.xml` names, and our own sources compiled against it."""

    name: str

    def command(self, main: str, *arguments: str | Path, options: Sequence[str] = ()) -> list[str | Path]:
        """The command that runs a class."""
        classpath, kept = ":".join(self._classpath()), self._kept(main)
        classes = f"-XX:SharedArchiveFile={kept}" if kept.exists() else "-XX:+RecordDynamicDumpInfo"
        return [_jdk("java"), *FAST_START, classes, *options, "-cp", classpath, main, *arguments]

    def keep_classes(self, main: str, pid: int) -> None:
        """Let later starts find in one file the thousands of classes that this one read and checked: half of the work.

        A JVM that cannot use the file, as after an update, does without.
        """
        kept, jcmd = self._kept(main), needs.find("jcmd")
        if kept.exists() or jcmd is None:
            return
        with _locked():
            if not kept.exists():
                new = kept.with_suffix(".new")
                subprocess.run([jcmd, str(pid), "VM.cds", "dynamic_dump", new], capture_output=True)
                if new.exists():
                    new.rename(kept)

    def _kept(self, main: str) -> Path:
        return needs.jars_folder(self.name, self._files(), CACHE) / f"{main}.jsa"

    def _classpath(self) -> list[str]:
        """Only the first call of all asks Maven, and one after a jar went missing."""
        made = needs.jars_folder(self.name, self._files(), CACHE)
        if (found := _read(made)) is not None:
            return found
        CACHE.mkdir(exist_ok=True)
        with _locked():  # one test process resolves, the others wait and find
            if (found := _read(made)) is None:
                if not _names_jars(made):
                    self._make(made)
                shutil.make_archive(str(made / "new"), "zip", made / "classes")  # kept classes are those of jars
                (made / "new.zip").rename(made / "classes.jar")
                found = _read(made)
        if found is None:
            raise ServerMissingError(f"Maven names jars of {self.name} that are not there")
        return found

    def _make(self, made: Path) -> None:
        """Appears under its name only when it is complete."""
        pom, *sources = self._files()
        print(f"Fetching {self.name} from Maven Central (first run only) ...", flush=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix=f"{made.name}.") as folder:
            new = Path(folder) / "new"
            (new / "classes").mkdir(parents=True)
            goal = [f"{PLUGIN}:build-classpath", f"-Dmdep.outputFile={new / 'classpath'}"]
            maven = [program("mvn"), "-q", "-B", "-U", "-Dstyle.color=never"]
            _run([*maven, "-f", pom, *goal], f"Maven cannot fetch the jars of {self.name}")
            if sources:
                classpath = (new / "classpath").read_text().strip()
                options = ["-nowarn", "-cp", classpath, "-d", str(new / "classes")]
                _run([_jdk("javac"), *options, *sources], f"javac cannot compile our sources of {self.name}")
            shutil.rmtree(made, ignore_errors=True)
            new.rename(made)

    def _files(self) -> list[Path]:
        return [HERE / f"{self.name}.pom.xml", *(HERE / source for source in needs.JARS[self.name])]


class JvmServer(ServerProcess):
    """A server of ours that runs on a JVM."""

    jars: Jars
    main: str

    def start(self) -> bool:
        super().start()
        self.jars.keep_classes(self.main, self.pid)
        return True


def _read(made: Path) -> list[str] | None:
    ours = made / "classes.jar"
    return [str(ours), *jars] if (jars := _names_jars(made)) and ours.exists() else None


def _names_jars(made: Path) -> list[str] | None:
    try:
        jars = (made / "classpath").read_text().strip().split(":")
    except FileNotFoundError:
        return None
    return jars if all(map(os.path.exists, jars)) else None


@contextmanager
def _locked() -> Iterator[None]:
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _jdk(name: str) -> str:
    return program(name)


def _run(command: Sequence[str | Path], failure: str) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        said = re.search(r"error\]?:? *(.*)", done.stdout + done.stderr, re.IGNORECASE)
        raise ServerMissingError(f"{failure}: {said[1].strip()[:300] if said else f'code {done.returncode}'}")
