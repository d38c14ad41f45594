"""The listing parser: nothing is lost, and each form of the syntax is understood."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tpulab.compiler.listing import ListingError, Predicate, parse_listing, register

SMALL = """= control target key start
LB: loop body
= control target key end

     0   :  { %s10_s0 = inlined_call_operand.hbm [shape: f32[8,128], index: 0, kind: input, \
shape index: {}] /* window ;; of { operand } 0. */  ;;  %s11_s1 = smov 0 } /* entry bundle: %k */
   0x1   :  { %7 = vsyncpa [#allocation4 + $0x1], 0 } /* Start region 1 */
   0x2 LB: > { %s12_s2 = sphi %s11_s1, %s13_s2  ;;  %s14_s3 = smov (%p1_p0, %s15_s3), 0 } \
/* Start region 94 :: Start/End empty region 5 */
   0x3   : > { %16 = dma.hbm_to_vmem [thread:$0]  (!%p2_p9), /*hbm=*/%s3_s6, \
/*size_in_granules=*/128, /*vmem=*/%s4_s2, /*dst_syncflagno=*/%s5_s1 /*
base_bounds: (1, 2)
strides: (64, 4) */ }
   0x4   : > { %17 = shalt.err (!%p3_p1) /* BoundsCheck 1 [deref of %s4] for %16 = \
dma.vmem_to_hbm (%p1), /*vmem=*/%s1, 4 /* note */
hlo: f.1
 */ }
   0x5   : >> { %18 = vst [vmem:[#allocation2 + $0x2b0] sm:$0xff] /*vst_source=*/%v1_v0  ;;  \
%v2_v3 = vld [vmem:[%s12_s2 + $0x10] ss:$16 sps:$4 sm:$0xff] /* combine strided load */ }
   0x6   : > { %20 = sbr.rel (!%p3_p2) target = $region94  ;;  %s21_s5 = sld [smem:[#allocation9]] \
(!%p3_p2) /* logical chip id */ }
   0x7   :  {}
   0x8   :  {} /* End region 94 */
"""


def test_every_form_of_the_syntax() -> None:
    listing = parse_listing(SMALL, "k")
    assert listing.render() == SMALL
    assert [bundle.address for bundle in listing.bundles] == list(range(9))
    assert listing.regions == {1: 1, 94: 2, 5: 2}
    ops = [bundle.ops for bundle in listing.bundles]
    assert ops[0][0].opcode == "inlined_call_operand.hbm"
    assert ops[0][0].attributes == ("shape: f32[8,128], index: 0, kind: input, shape index: {}",)
    assert len(ops[0]) == 2
    assert ops[1][0].operands == ("[#allocation4 + $0x1]", "0")
    assert listing.bundles[2].marks == ("LB",)
    assert listing.bundles[2].depth == 1
    assert listing.bundles[2].starts == (94, 5)
    assert listing.bundles[2].ends == (5,)
    assert ops[2][1].predicate == Predicate("%p1_p0", False, "%s15_s3")
    assert ops[2][1].operands == ("0",)
    dma = ops[3][0]
    assert dma.opcode == "dma.hbm_to_vmem"
    assert dma.predicate == Predicate("%p2_p9", True, None)
    assert dma.operands == ("%s3_s6", "128", "%s4_s2", "%s5_s1")
    assert dma.attributes == ("thread:$0",)
    assert "base_bounds: (1, 2)" in dma.comment
    assert "hbm=" not in dma.comment
    assert ops[4][0].opcode == "shalt.err"
    assert "/* note */" in ops[4][0].comment
    assert ops[5][0].operands == ("[vmem:[#allocation2 + $0x2b0] sm:$0xff]", "%v1_v0")
    assert ops[5][1].operands == ("[vmem:[%s12_s2 + $0x10] ss:$16 sps:$4 sm:$0xff]",)
    assert listing.bundles[5].depth == 2
    assert ops[6][0].target_region == 94
    assert ops[6][1].operands == ("[smem:[#allocation9]]",)
    assert ops[6][1].predicate == Predicate("%p3_p2", True, None)
    assert ops[7] == ()
    assert listing.bundles[8].ends == (94,)


def test_registers() -> None:
    assert register("%s7858_s21") == "s21"
    assert register("%p7974_p0") == "p0"
    assert register("%vm193_vm0") == "vm0"
    assert register("%7482") is None
    assert register("4294967295") is None


@pytest.mark.parametrize("text", ["", "nothing here\n", "   0x1   :  {}\n"])
def test_no_bundle_is_an_error_with_a_sentence(text: str) -> None:
    with pytest.raises(ListingError, match="no bundle"):
        parse_listing(text, "k")


def test_a_cut_off_listing_is_an_error() -> None:
    with pytest.raises(ListingError, match="closing brace"):
        parse_listing("     0   :  { %1 = sst [smem:[#allocation1]] %s0_s0  ;;  %s1", "k")


def test_an_unknown_operation_is_kept() -> None:
    text = "     0   :  { %v1_v2 = vfrobnicate.bf16.x7 %v3_v4, {weird, 4}  ;;  ???  }\n"
    listing = parse_listing(text)
    assert [op.opcode for op in listing.bundles[0].ops] == ["vfrobnicate.bf16.x7", "???"]
    assert listing.bundles[0].ops[0].operands == ("%v3_v4", "{weird, 4}")
    assert listing.render() == text


def test_ten_thousand_bundles_in_about_a_second() -> None:
    import time

    line = (
        "   {:#x}   : > {{ %2474 = vmatmul.mubr.bf16.gmra.mxu0 %v6444_v59  ;;  "
        "%v508_v4 = vld [vmem:[#allocation2 + $0x110] sm:$0xff]  ;;  "
        "%v2679_v42 = vadd.f32 %v2678_v41, %v2325_v39  ;;  "
        "%3959 = vst [vmem:[#allocation2 + $0x2b0] sm:$0xff] /*vst_source=*/%v3703_v46 }}\n"
    )
    text = "     0   :  {}\n" + "".join(line.format(i) for i in range(1, 10_000))
    start = time.process_time()
    listing = parse_listing(text)
    # Twice the goal, because machines that run tests are slow and shared.
    assert time.process_time() - start < 2.0
    assert len(listing.bundles) == 10_000
    assert listing.opcode_counts()["vld"] == 9_999


_PREDICATES = st.builds("%p{}_p{}".format, st.integers(0, 999), st.integers(0, 15))
_NAMES = st.one_of(
    st.builds("%s{}_s{}".format, st.integers(0, 9999), st.integers(0, 31)),
    st.builds("%v{}_v{}".format, st.integers(0, 9999), st.integers(0, 63)),
    _PREDICATES,
    st.builds("%{}".format, st.integers(0, 9999)),
)
_MEMORY = st.builds(
    lambda space, place, offset: f"[{space}:[{place} + $0x{offset:x}] sm:$0xff]",
    st.sampled_from(["vmem", "smem"]),
    st.sampled_from(["#allocation2", "%s7_s3"]),
    st.integers(0, 4096),
)
_OPERANDS = st.lists(st.one_of(_NAMES, st.integers(0, 2**32 - 1).map(str), _MEMORY), max_size=5)
_OPCODES = st.builds(
    lambda stem, suffixes: ".".join([stem, *suffixes]),
    st.sampled_from(["vadd", "sld", "vmatmul", "dma", "scalar_lea", "xyzzy", "int_to_ptr"]),
    st.lists(st.sampled_from(["f32", "mxu0", "bf16", "hbm_to_vmem", "s32"]), max_size=3),
)
_COMMENT_TEXT = st.text(
    st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters="*/"), max_size=30
).map(lambda text: " " + text.replace("region", "r") + " ")


@st.composite
def _ops(draw: st.DrawFn) -> tuple[str, tuple[object, ...]]:
    value = draw(st.none() | _NAMES)
    opcode = draw(_OPCODES)
    operands = tuple(draw(_OPERANDS))
    predicate = draw(st.none() | st.tuples(_PREDICATES, st.booleans(), st.none() | _NAMES))
    comment = draw(st.none() | _COMMENT_TEXT)
    text = (f"{value} = " if value else "") + opcode + " "
    if predicate:
        kept = f", {predicate[2]}" if predicate[2] else ""
        text += f"({'!' if predicate[1] else ''}{predicate[0]}{kept}), "
    text += ", ".join(operands)
    if comment is not None:
        text += f" /*{comment}*/"
    return text, (value, opcode, operands, predicate)


# On a shared machine, drawing programs can take longer than Hypothesis likes.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.lists(_ops(), max_size=5),
            st.lists(st.integers(0, 999), max_size=2),
            st.integers(0, 3),
            st.sampled_from(["", "LB", "PF", "CT"]),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_what_is_written_is_what_is_read(program: list) -> None:
    text = "a header\n\n"
    for address, (ops, regions, depth, mark) in enumerate(program):
        body = "  ;;  ".join(op for op, _ in ops)
        head = f"{address:#6x}" if address else "     0"
        text += f"{head} {mark:2}: {'>' * depth} {{ {body} }}"
        if regions:
            text += " /* " + " :: ".join(f"Start region {r}" for r in regions) + " */"
        text += "\n"
    listing = parse_listing(text)
    assert listing.render() == text
    assert len(listing.bundles) == len(program)
    for bundle, (ops, regions, depth, mark) in zip(listing.bundles, program, strict=True):
        assert bundle.depth == depth
        assert bundle.marks == ((mark,) if mark else ())
        assert bundle.starts == tuple(regions)
        assert len(bundle.ops) == len(ops)
        for op, (_, (value, opcode, operands, predicate)) in zip(bundle.ops, ops, strict=True):
            assert (op.value, op.opcode, op.operands) == (value, opcode, operands)
            assert (tuple(op.predicate) if op.predicate else None) == predicate


@settings(deadline=None)
@given(st.text(max_size=300))
def test_no_text_makes_it_crash(text: str) -> None:
    try:
        listing = parse_listing("     0   :  {}\n" + text)
    except ListingError:
        return
    assert listing.render() == "     0   :  {}\n" + text
    assert not re.search("\0", "".join(b.comment for b in listing.bundles if "\0" not in text))
