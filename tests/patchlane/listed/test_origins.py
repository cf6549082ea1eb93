"""What a URL or a path names: a repository's commit or tag, an archive of one, a wheel."""

import pytest

from patchlane.listed.origins import is_commit, of_filename, of_url, version_of_tag

KNOWN = {"nvidia/megatron-lm": "megatron-core"}
SHA = "5be9626709af2722333bf54797c954c09edeada3"
HUB, PLACE = "https://github.com/NVIDIA/Megatron-LM", "NVIDIA/Megatron-LM"
WHEELS = "https://github.com/a/b/releases/download/v1"


@pytest.mark.parametrize(
    ("url", "found"),
    [
        (f"git+{HUB}@{SHA}#egg=megatron_core", ("megatron_core", None, PLACE, SHA)),
        (f"git+{HUB}.git@core_v0.19.0", ("megatron-core", None, PLACE, "core_v0.19.0")),
        ("git+ssh://git@github.com/nvidia/megatron-lm.git@x", ("megatron-core", None, "nvidia/megatron-lm", "x")),
        ("git@github.com:acme/Megatron-LM.git", ("megatron-core", None, "acme/Megatron-LM", "")),
        (f"{HUB}/archive/{SHA}.zip", ("megatron-core", None, PLACE, SHA)),
        (f"{HUB}/archive/refs/tags/core_v0.19.0.tar.gz", ("megatron-core", None, PLACE, "core_v0.19.0")),
        (f"{HUB}/archive/release-1.0.zip", ("megatron-core", None, PLACE, "release-1.0")),
        (f"{WHEELS}/liger_kernel-0.7.0-py3-none-any.whl", ("liger-kernel", "0.7.0", "", "")),
        ("./dist/flash_attn-2.8.3+cu12-cp312-cp312-linux_x86_64.whl", ("flash-attn", "2.8.3+cu12", "", "")),
        ("file:///opt/liger_kernel-0.7.0.tar.gz", ("liger-kernel", "0.7.0", "", "")),
        ("git+https://github.com/some/other@v1", ("", None, "some/other", "v1")),
        ("/opt/megatron-lm", ("", None, "", "")),
    ],
)
def test_urls(url, found):
    assert of_url(url, KNOWN) == found


def test_tags_are_versions_and_branches_are_not():
    refs = ("v0.19.0", "core_v0.19.0", "2.3.2.post1", "core_r0.19.0", "main", "0.19", SHA)
    assert [version_of_tag(ref) for ref in refs] == ["0.19.0", "0.19.0", "2.3.2.post1", None, None, "0.19", None]
    assert is_commit(SHA) and is_commit(SHA[:8]) and not is_commit(SHA[:6]) and not is_commit("feedface")
    assert of_filename("x-1.0.whl") == of_filename("notes.txt")
