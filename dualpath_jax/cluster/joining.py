"""When a request that is still being read joins a prefill pass (decision 0014)."""

from collections.abc import Sequence
from typing import final

from dualpath_jax.cluster.prefill_jobs import PrefillJob
from dualpath_jax.cluster.prefill_pass import Share
from dualpath_jax.engine.attention_time import AttentionTimeModel
from dualpath_scheduler.policy import PrefillLimits, pack_prefill

EARLY = 1.5
"""Reads may need so many times the request's computing time when it joins: prediction errs, and late costs overlap."""

MIN_WAIT_S = 0.001

PATIENCE = 2.0
"""A pass waits for a request's reads until they have needed so many times what they were given."""


@final
class JoiningRule:
    """Who may join, by how long prefill takes: what was measured at the start, times what passes took since."""

    def __init__(self, model: AttentionTimeModel, limits: PrefillLimits) -> None:
        self._model = model
        self._limits = limits
        self._took_s = self._foretold_s = self._model_s([(0, limits.new_tokens)])

    def early_s(self, job: PrefillJob) -> float:
        """Seconds before the end of its reads at which a request may join."""
        (new,) = pack_prefill([(job.position, job.left_tokens)], self._model.seconds, self._limits)
        return EARLY * self._took_s / self._foretold_s * self._model_s([(job.position, new)])

    def joins(self, job: PrefillJob, *, alone: bool) -> bool:
        """Whether a pass that begins now is hardly held up by the job, or holds up nobody: it is alone on its node.

        One that has held up a pass joins again when all of it is there, and nothing of it is under way any more.
        """
        if job.left_behind:
            return not job.blocks.left_s and all(send.done() for send in job.sends)
        return alone or job.blocks.left_s <= self.early_s(job)

    def wait_s(self, jobs: Sequence[PrefillJob]) -> float | None:
        """Seconds until the first of jobs that may not join yet may, if its reads go on as they did."""
        waits = [job.blocks.left_s - self.early_s(job) for job in jobs if not job.left_behind]
        return max(min(waits), MIN_WAIT_S) if waits else None

    def patience_s(self, job: PrefillJob) -> float:
        """Seconds for which a pass that begins now goes on with the job, whether or not its reads have come.

        Not less than the compute quota, which is what engines may wait for one another: the first part may have come
        in the burst of a storage card, and say nothing of the others.
        """
        return max(PATIENCE * max(self.early_s(job), job.blocks.left_s), self._limits.quota_s)

    def note(self, shares: Sequence[Share], took_s: float) -> None:
        """A pass has computed all layers for its shares; half of what was known fades."""
        engines: dict[int, list[tuple[int, int]]] = {}
        for share in shares:
            engines.setdefault(share.job.engine, []).append((share.start, share.tokens))
        self._took_s = self._took_s / 2 + took_s
        self._foretold_s = self._foretold_s / 2 + max(self._model_s(chunks) for chunks in engines.values())

    def _model_s(self, chunks: Sequence[tuple[int, int]]) -> float:
        return self._model.fixed_s + sum(self._model.seconds(cached, new) for cached, new in chunks)
