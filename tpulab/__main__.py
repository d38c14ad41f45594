"""``python3 -m tpulab VERB``: make the environment if it is not there, then run the verb."""

# This file must parse and say something useful on any Python 3: it is where an old one stops.

import sys

OLDEST = (3, 11)


def _refuse_old_python() -> int:
    import os
    import subprocess

    def works(name: str) -> bool:
        # a version manager's stand-in is on the PATH without a Python behind it
        with open(os.devnull, "w") as nowhere:
            try:
                return subprocess.call([name, "-c", ""], stdout=nowhere, stderr=nowhere) == 0
            except OSError:
                return False

    have = "{}.{}".format(sys.version_info[0], sys.version_info[1])
    sentence = "tpulab needs Python {}.{} or newer; this is {}.".format(OLDEST[0], OLDEST[1], have)
    names = ["python3.{}".format(minor) for minor in (13, 12, 11)]
    newer = [name for name in names if works(name)]
    verb = " ".join(sys.argv[1:]) or "lab"
    if newer:
        sentence += " You have a newer one: run  {} -m tpulab {}".format(newer[0], verb)
    else:
        sentence += " Install one (on Debian:  sudo apt install python3.11 ) and try again."
    sys.stderr.write(sentence + "\n")
    return 1


def main() -> int:
    """Hand the command line to the environment's own ``tpulab``; return the exit status."""
    if sys.version_info < OLDEST:
        return _refuse_old_python()
    from tpulab import bootstrap

    return bootstrap.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
