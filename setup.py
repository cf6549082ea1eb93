"""What a wheel holds: the audit and the packs' patches. All else runs in a clone, which is installed with -e."""

import shutil

from setuptools import setup
from setuptools.command.build_py import build_py


class AuditOnly(build_py):
    """Leaves the engine and the model out, unless the files stay where they are."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if not self.editable_mode:
            ours = [name for name in self.packages if name.partition(".")[0] == "patchlane"]
            self.packages = [*ours, "patchlane.packs"]

    def run(self) -> None:
        if not self.editable_mode:  # a file that an earlier build left would be in the wheel
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(cmdclass={"build_py": AuditOnly})
