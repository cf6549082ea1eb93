"""A pack has all its parts."""

import shutil

from reproducers.desk.start import mutants


def test_a_fix_without_a_mutant_is_a_fault_that_names_the_page(desk):
    made = desk(1)
    shutil.rmtree(made.folder / "mutants")
    (fault,) = made.lint().faults
    assert (fault.rule, fault.file, fault.remedy) == (
        "pack-mutants",
        f"packs/{made.name}/fix.patch",
        mutants.PAGE,
    )


def test_a_pack_without_a_fix_owes_no_mutant(desk):
    made = desk(6)
    assert not mutants.paths(made.case().pack) and made.lint().faults == []


def test_a_mutant_that_only_a_gpu_tells_from_the_fix_names_a_check_of_that_lane(desk):
    made = desk(10)
    path = made.folder / "mutants" / "weight_gradient_fp32.patch"
    assert [fault for fault in made.lint().faults if fault.rule == "pack-mutants"] == []
    path.write_text(path.read_text().replace("Caught-By: ", "Caught-By: no "))
    (fault,) = (fault for fault in made.lint().faults if fault.rule == "pack-mutants")
    assert fault.file == f"packs/{made.name}/mutants/weight_gradient_fp32.patch"


def test_a_mutant_may_name_a_fact_of_the_census(desk):
    made = desk(10)
    path = made.folder / "mutants" / "logits_kept.patch"
    assert path.read_text().startswith("Caught-By: census: ")
    assert [fault for fault in made.lint().faults if fault.rule == "pack-mutants"] == []
    path.write_text(path.read_text().replace("census: ", "senses: "))
    assert [fault.rule for fault in made.lint().faults] == ["pack-mutants"]
