"""Ways to break the package on purpose, by name (ZIPAGE_MUTATION)."""

import torch


def skip_compaction():
    """The kept tokens are chosen, but not moved."""
    from zipage_kernels import ops

    ops.compact = lambda *args, **kwargs: None


def position_off_by_one():
    """Positions shift by one as soon as a request has been compressed."""
    from zipage_patches import active, forward

    original = forward.init_new

    def shifted(forward_batch, cls, batch, model_runner, **kwargs):
        if batch.forward_mode.is_decode() and active.manager() is not None:
            states = [active.manager().engine.state(r) for r in batch.reqs]
            batch.orig_seq_lens = batch.orig_seq_lens + torch.tensor(
                [int(s is not None and s.count == 1) for s in states], dtype=batch.orig_seq_lens.dtype
            )
        return original(forward_batch, cls, batch, model_runner, **kwargs)

    forward.init_new = shifted


def leak_page():
    """Evicted slots are not given back."""
    from zipage_patches.engine import SGLangEngine

    SGLangEngine.free = lambda engine, remains: None


def stale_seq_lens_cpu():
    """Only the device copy of the batch's lengths is shortened."""
    from zipage_patches.engine import SGLangEngine

    publish = SGLangEngine.publish

    def stale(engine, batch, work):
        before = batch.seq_lens_cpu
        remains = publish(engine, batch, work)
        batch.seq_lens_cpu = before
        return remains

    SGLangEngine.publish = stale


def write_into_tree():
    """The copy-out of tree-owned slots is skipped, so the compaction writes what the prefix tree owns."""
    from zipage_patches.compat import kv
    from zipage_patches.engine import SGLangEngine
    from zipage_sglang.plan import floor_page

    SGLangEngine.protected_len = lambda engine, req: min(
        kv.protected(req), floor_page(len(req.origin_input_ids), engine.page_size)
    )


def forget_query_slot():
    """A finished request keeps its query slot."""
    from zipage_patches import lifecycle

    lifecycle.row_free = lambda row_pool, req: None


def insert_compressed_rows():
    """A compressed row enters the prefix tree under its token ids."""
    from zipage_patches.engine import SGLangEngine

    publish = SGLangEngine.publish

    def inserting(engine, batch, work):
        remains = publish(engine, batch, work)
        for item in work:
            item.req.skip_radix_cache_insert = False
        return remains

    SGLangEngine.publish = inserting


def compress_regardless():
    """A request's wish not to be compressed is forgotten."""
    from zipage_patches.engine import SGLangEngine

    SGLangEngine.config_of = lambda engine, req: req.zipage_config or engine.config


def one_configuration():
    """What is due in one step is compressed in one launch, with the configuration of the first."""
    from zipage_sglang.compressor import Compressor

    Compressor._groups = lambda compressor, jobs, most: [[job._replace(config=jobs[0].config) for job in jobs]]


def late_rows():
    """Rows are read when their compression begins, not when it is planned."""
    from zipage_sglang.compressor import Compressor

    enqueue = Compressor._enqueue
    Compressor._enqueue = lambda compressor, jobs, rows, scoring: enqueue(compressor, jobs, None, scoring)


def uncounted_tokens():
    """Penalties miss the token before the step that was in flight when a request was parked, and count that step's twice."""
    from zipage_patches import parking

    parking._count_one_behind = lambda batch, late: None


def pages_at_once():
    """Pages are given back when a compression beside the decode steps is launched, not when it is over."""
    from zipage_sglang.flight import Flights

    launch = Flights.launch

    def launching(flights, lands, remains, query_slots):
        flights.engine.free(remains)
        return launch(flights, lands, type(remains)([], []), query_slots)

    Flights.launch = launching


def unlock_at_once():
    """The prefix tree may evict what a compression beside the decode steps still reads."""
    from zipage_sglang.flight import Flights

    launch = Flights.launch

    def launching(flights, lands, remains, query_slots):
        flights.engine.free(remains._replace(segments=[]))
        return launch(flights, lands, remains._replace(locks=[]), query_slots)

    Flights.launch = launching


def no_wait():
    """A row that is freed while it is compressed is not waited for."""
    from zipage_sglang.manager import Manager

    release = Manager.release

    def releasing(manager, req):
        if (state := manager.engine.state(req)) is not None:
            state.flight = None
        release(manager, req)

    Manager.release = releasing


def last_window_only():
    """Windows before the last one do not score."""
    from zipage_sglang.manager import Manager

    Manager._score = lambda manager, scored: None


def early_plans():
    """Attention is planned without waiting for the plan before it."""
    from zipage_patches import forward

    forward.load_batch = lambda original, runner, *args, **kwargs: original(runner, *args, **kwargs)


def endless_groups():
    """Whoever waits for room is left waiting until nearly everybody has ended."""
    from zipage_sglang.grouping import Groups

    Groups.waits = lambda groups, now, rows, waiting: groups.rows is not None and rows > 2


def ignore_pressure():
    """Rows beyond their trigger are never compressed, whoever waits."""
    from zipage_sglang.manager import Manager

    Manager._needed = lambda manager, batch: []


MUTATIONS = {f.__name__: f for f in (skip_compaction, position_off_by_one, leak_page, stale_seq_lens_cpu, write_into_tree,
                                     forget_query_slot, insert_compressed_rows, ignore_pressure, compress_regardless, one_configuration,
                                     uncounted_tokens, late_rows, pages_at_once, no_wait, unlock_at_once, last_window_only,
                                     early_plans, endless_groups)}
