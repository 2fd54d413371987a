"""A captured step's attention is planned only when the plan before it has been copied to the device."""

import torch

from zipage_patches import active, forward


class Stream:
    """Of a GPU that is behind: what is recorded here comes to pass when somebody waits for it."""

    def __init__(self, log):
        self.log, self.recorded = log, 0

    def record_event(self):
        self.recorded += 1
        return Event(self.log, self.recorded)


class Event:
    def __init__(self, log, number):
        self.log, self.number = log, number

    def synchronize(self):
        self.log.append(f"copied {self.number}")


def test_a_plan_waits_for_the_copy_of_the_one_before(monkeypatch):
    log, plans = [], iter(range(1, 9))
    stream = Stream(log)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(active, "planned", None)
    original = lambda runner, batch, proxies: log.append(f"plan {next(plans)}") or batch
    assert forward.load_batch(original, None, "captured") == "captured" and log == ["plan 1"]
    monkeypatch.setattr(active, "manager", lambda: object())
    assert [forward.load_batch(original, None, batch) for batch in "abc"] == ["a", "b", "c"]
    assert log == ["plan 1", "plan 2", "copied 1", "plan 3", "copied 2", "plan 4"]
