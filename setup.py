"""What a wheel holds: the audit and the packs' patches. All else runs in a clone, which is installed with -e."""

from setuptools import setup
from setuptools.command.build_py import build_py


class AuditOnly(build_py):
    """Leaves the engine and the model out, unless the files stay where they are."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if not self.editable_mode:
            ours = [name for name in self.packages if name.partition(".")[0] == "patchlane"]
            self.packages = [*ours, "patchlane.packs"]


setup(cmdclass={"build_py": AuditOnly})
