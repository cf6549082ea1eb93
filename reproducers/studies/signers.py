"""Who vouches for a receipt: OpenSSH signatures (SSHSIG) beside the statements, ``NAME.json.sig``.

A signature covers the bytes of the statement, and with them the digest of its log. ``ssh-keygen`` makes and checks it;
trusted keys stand in a file of its own format, ALLOWED SIGNERS in ssh-keygen(1).
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

from patchlane.base import clock
from patchlane.base.errors import CannotTestHere, PatchlaneError
from patchlane.base.files import write_atomic
from reproducers.evidence.shelf import signature
from reproducers.evidence.verification import checked

NAMESPACE = "patchlane-receipt"


class Signed(NamedTuple):
    """One receipt's signature: its signer if a trusted key made it, and the fault if the signature does not hold."""

    signer: str | None
    fault: str = ""


def sign(receipt: Path, key: Path) -> Path:
    """Sign a statement with a private key, or with the public key of one that ssh-agent holds; returns the signature.

    Raises PatchlaneError if the receipt does not verify or the key cannot sign, CannotTestHere without ssh-keygen.
    """
    if faults := checked(receipt).faults:
        raise PatchlaneError(f"{receipt}: {'; '.join(faults)}", "python -m reproducers.receipts verify")
    done = _keygen("sign", "-n", NAMESPACE, "-f", str(key), given=receipt.read_bytes())
    if done.returncode or b"BEGIN SSH SIGNATURE" not in done.stdout:
        reason = (done.stderr.decode(errors="replace").strip().splitlines() or ["no signature"])[-1]
        raise PatchlaneError(f"--key {key}: {reason}", "ssh-keygen -t ed25519 -f KEY makes one")
    write_atomic(signature(receipt), done.stdout)
    return signature(receipt)


def signed(receipt: Path, signers: Path) -> Signed:
    """The signer of a statement by the file of allowed ``signers``. Raises CannotTestHere without ssh-keygen."""
    path = signature(receipt)
    if not path.is_file():
        return Signed(None)
    data = receipt.read_bytes()
    named = _keygen("find-principals", "-s", str(path), "-f", str(signers))
    for principal in named.stdout.decode(errors="replace").splitlines():
        options = ("-f", str(signers), "-I", principal, "-n", NAMESPACE, "-s", str(path))
        if _keygen("verify", *options, given=data).returncode == 0:
            return Signed(principal)
        return Signed(None, f"the signature of {principal} is not of this statement")
    # nobody in the file: the signature may still be whole, or of other bytes
    if _keygen("check-novalidate", "-n", NAMESPACE, "-s", str(path), given=data).returncode:
        return Signed(None, "the signature is not of this statement")
    return Signed(None)


def _keygen(action: str, *options: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        command = ["ssh-keygen", "-Y", action, *options]  # in our session, or it could not ask for a passphrase
        return clock.run(command, clock.STEP_S, input=given, capture_output=True, start_new_session=False)
    except FileNotFoundError as error:
        raise CannotTestHere("ssh-keygen is not installed", "apt-get install openssh-client") from error
