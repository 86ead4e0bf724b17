from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_PREFILL: _ClassVar[Role]
    ROLE_DECODE: _ClassVar[Role]
ROLE_UNSPECIFIED: Role
ROLE_PREFILL: Role
ROLE_DECODE: Role

class Sampling(_message.Message):
    __slots__ = ("temperature", "seed")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("request_id", "tokens", "max_tokens", "sampling", "stop_tokens", "forced_tokens", "tenant_salt")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FORCED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TENANT_SALT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tokens: _containers.RepeatedScalarFieldContainer[int]
    max_tokens: int
    sampling: Sampling
    stop_tokens: _containers.RepeatedScalarFieldContainer[int]
    forced_tokens: _containers.RepeatedScalarFieldContainer[int]
    tenant_salt: str
    def __init__(self, request_id: _Optional[str] = ..., tokens: _Optional[_Iterable[int]] = ..., max_tokens: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., stop_tokens: _Optional[_Iterable[int]] = ..., forced_tokens: _Optional[_Iterable[int]] = ..., tenant_salt: _Optional[str] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("token", "logprob", "top_token_1", "top_token_2", "top_logprob_1", "top_logprob_2")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_1_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_2_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROB_1_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROB_2_FIELD_NUMBER: _ClassVar[int]
    token: int
    logprob: float
    top_token_1: int
    top_token_2: int
    top_logprob_1: float
    top_logprob_2: float
    def __init__(self, token: _Optional[int] = ..., logprob: _Optional[float] = ..., top_token_1: _Optional[int] = ..., top_token_2: _Optional[int] = ..., top_logprob_1: _Optional[float] = ..., top_logprob_2: _Optional[float] = ...) -> None: ...

class GenerateEvent(_message.Message):
    __slots__ = ("tokens", "finished")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    finished: Finished
    def __init__(self, tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("arrival", "assigned", "read_start", "read_end", "prefill_start", "first_token", "end")
    ARRIVAL_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    READ_START_FIELD_NUMBER: _ClassVar[int]
    READ_END_FIELD_NUMBER: _ClassVar[int]
    PREFILL_START_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    arrival: float
    assigned: float
    read_start: float
    read_end: float
    prefill_start: float
    first_token: float
    end: float
    def __init__(self, arrival: _Optional[float] = ..., assigned: _Optional[float] = ..., read_start: _Optional[float] = ..., read_end: _Optional[float] = ..., prefill_start: _Optional[float] = ..., first_token: _Optional[float] = ..., end: _Optional[float] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("error", "cancelled", "timings", "prompt_tokens", "hit_tokens", "planned_prefill_side_blocks", "planned_decode_side_blocks", "recomputed_blocks", "prefill_node", "prefill_engine", "decode_node", "decode_engine", "attempts")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PLANNED_PREFILL_SIDE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PLANNED_DECODE_SIDE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_NODE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_ENGINE_FIELD_NUMBER: _ClassVar[int]
    DECODE_NODE_FIELD_NUMBER: _ClassVar[int]
    DECODE_ENGINE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    error: str
    cancelled: bool
    timings: Timings
    prompt_tokens: int
    hit_tokens: int
    planned_prefill_side_blocks: int
    planned_decode_side_blocks: int
    recomputed_blocks: int
    prefill_node: str
    prefill_engine: int
    decode_node: str
    decode_engine: int
    attempts: int
    def __init__(self, error: _Optional[str] = ..., cancelled: _Optional[bool] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., prompt_tokens: _Optional[int] = ..., hit_tokens: _Optional[int] = ..., planned_prefill_side_blocks: _Optional[int] = ..., planned_decode_side_blocks: _Optional[int] = ..., recomputed_blocks: _Optional[int] = ..., prefill_node: _Optional[str] = ..., prefill_engine: _Optional[int] = ..., decode_node: _Optional[str] = ..., decode_engine: _Optional[int] = ..., attempts: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("nodes", "vocab_size", "max_context_tokens", "indexed_blocks", "running_requests", "evicted_blocks")
    NODES_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INDEXED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeInfo]
    vocab_size: int
    max_context_tokens: int
    indexed_blocks: int
    running_requests: int
    evicted_blocks: int
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeInfo, _Mapping]]] = ..., vocab_size: _Optional[int] = ..., max_context_tokens: _Optional[int] = ..., indexed_blocks: _Optional[int] = ..., running_requests: _Optional[int] = ..., evicted_blocks: _Optional[int] = ...) -> None: ...

class Identity(_message.Message):
    __slots__ = ("model_digest", "weights_id", "weights_version", "layout_digest", "block_tokens")
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model_digest: str
    weights_id: str
    weights_version: int
    layout_digest: str
    block_tokens: int
    def __init__(self, model_digest: _Optional[str] = ..., weights_id: _Optional[str] = ..., weights_version: _Optional[int] = ..., layout_digest: _Optional[str] = ..., block_tokens: _Optional[int] = ...) -> None: ...

class NodeInfo(_message.Message):
    __slots__ = ("node_id", "incarnation", "role", "engines", "address", "identity", "vocab_size", "max_context_tokens", "tokens_per_s", "snic_tokens_per_s", "decode_tokens", "cnic_tokens_per_s", "new_tokens_per_s")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    SNIC_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CNIC_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    NEW_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    incarnation: int
    role: Role
    engines: int
    address: str
    identity: Identity
    vocab_size: int
    max_context_tokens: int
    tokens_per_s: float
    snic_tokens_per_s: float
    decode_tokens: int
    cnic_tokens_per_s: float
    new_tokens_per_s: float
    def __init__(self, node_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., role: _Optional[_Union[Role, str]] = ..., engines: _Optional[int] = ..., address: _Optional[str] = ..., identity: _Optional[_Union[Identity, _Mapping]] = ..., vocab_size: _Optional[int] = ..., max_context_tokens: _Optional[int] = ..., tokens_per_s: _Optional[float] = ..., snic_tokens_per_s: _Optional[float] = ..., decode_tokens: _Optional[int] = ..., cnic_tokens_per_s: _Optional[float] = ..., new_tokens_per_s: _Optional[float] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("node",)
    NODE_FIELD_NUMBER: _ClassVar[int]
    node: NodeInfo
    def __init__(self, node: _Optional[_Union[NodeInfo, _Mapping]] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("lease_s",)
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    lease_s: float
    def __init__(self, lease_s: _Optional[float] = ...) -> None: ...

class UnregisterRequest(_message.Message):
    __slots__ = ("node_id", "incarnation", "reason")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    incarnation: int
    reason: str
    def __init__(self, node_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class UnregisterReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EngineReport(_message.Message):
    __slots__ = ("seq", "tok", "free_tokens")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TOK_FIELD_NUMBER: _ClassVar[int]
    FREE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    tok: int
    free_tokens: int
    def __init__(self, seq: _Optional[int] = ..., tok: _Optional[int] = ..., free_tokens: _Optional[int] = ...) -> None: ...

class QueueReport(_message.Message):
    __slots__ = ("seen", "read_q_tokens", "engines")
    SEEN_FIELD_NUMBER: _ClassVar[int]
    READ_Q_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    seen: int
    read_q_tokens: int
    engines: _containers.RepeatedCompositeFieldContainer[EngineReport]
    def __init__(self, seen: _Optional[int] = ..., read_q_tokens: _Optional[int] = ..., engines: _Optional[_Iterable[_Union[EngineReport, _Mapping]]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("node_id", "incarnation", "queues", "max_wait_s", "received")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    incarnation: int
    queues: QueueReport
    max_wait_s: float
    received: int
    def __init__(self, node_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., queues: _Optional[_Union[QueueReport, _Mapping]] = ..., max_wait_s: _Optional[float] = ..., received: _Optional[int] = ...) -> None: ...

class FetchReply(_message.Message):
    __slots__ = ("assignments", "cancellations")
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    CANCELLATIONS_FIELD_NUMBER: _ClassVar[int]
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    cancellations: _containers.RepeatedCompositeFieldContainer[Cancellation]
    def __init__(self, assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., cancellations: _Optional[_Iterable[_Union[Cancellation, _Mapping]]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("serial", "request_id", "attempt", "tokens", "max_tokens", "sampling", "stop_tokens", "forced_tokens", "root_key", "prefill_side_blocks", "decode_side_blocks", "prefill_node", "prefill_address", "prefill_engine", "decode_node", "decode_address", "decode_engine", "prefill_incarnation", "decode_incarnation")
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FORCED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROOT_KEY_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SIDE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DECODE_SIDE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_NODE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_ENGINE_FIELD_NUMBER: _ClassVar[int]
    DECODE_NODE_FIELD_NUMBER: _ClassVar[int]
    DECODE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DECODE_ENGINE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    DECODE_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    serial: int
    request_id: str
    attempt: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    max_tokens: int
    sampling: Sampling
    stop_tokens: _containers.RepeatedScalarFieldContainer[int]
    forced_tokens: _containers.RepeatedScalarFieldContainer[int]
    root_key: bytes
    prefill_side_blocks: int
    decode_side_blocks: int
    prefill_node: str
    prefill_address: str
    prefill_engine: int
    decode_node: str
    decode_address: str
    decode_engine: int
    prefill_incarnation: int
    decode_incarnation: int
    def __init__(self, serial: _Optional[int] = ..., request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., max_tokens: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., stop_tokens: _Optional[_Iterable[int]] = ..., forced_tokens: _Optional[_Iterable[int]] = ..., root_key: _Optional[bytes] = ..., prefill_side_blocks: _Optional[int] = ..., decode_side_blocks: _Optional[int] = ..., prefill_node: _Optional[str] = ..., prefill_address: _Optional[str] = ..., prefill_engine: _Optional[int] = ..., decode_node: _Optional[str] = ..., decode_address: _Optional[str] = ..., decode_engine: _Optional[int] = ..., prefill_incarnation: _Optional[int] = ..., decode_incarnation: _Optional[int] = ...) -> None: ...

class Cancellation(_message.Message):
    __slots__ = ("request_id", "attempt", "reason", "serial")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    reason: str
    serial: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ..., serial: _Optional[int] = ...) -> None: ...

class Published(_message.Message):
    __slots__ = ("key", "parent")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    parent: bytes
    def __init__(self, key: _Optional[bytes] = ..., parent: _Optional[bytes] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("request_id", "attempt", "tokens", "finished", "error", "fatal", "timings", "hit_tokens", "recomputed_blocks")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FATAL_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    finished: bool
    error: str
    fatal: bool
    timings: Timings
    hit_tokens: int
    recomputed_blocks: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., finished: _Optional[bool] = ..., error: _Optional[str] = ..., fatal: _Optional[bool] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., hit_tokens: _Optional[int] = ..., recomputed_blocks: _Optional[int] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("node_id", "incarnation", "queues", "progress", "published", "lost", "serial", "resident_added", "resident_dropped", "full_writes")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_ADDED_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_DROPPED_FIELD_NUMBER: _ClassVar[int]
    FULL_WRITES_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    incarnation: int
    queues: QueueReport
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    published: _containers.RepeatedCompositeFieldContainer[Published]
    lost: _containers.RepeatedScalarFieldContainer[bytes]
    serial: int
    resident_added: _containers.RepeatedScalarFieldContainer[bytes]
    resident_dropped: _containers.RepeatedScalarFieldContainer[bytes]
    full_writes: int
    def __init__(self, node_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., queues: _Optional[_Union[QueueReport, _Mapping]] = ..., progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ..., published: _Optional[_Iterable[_Union[Published, _Mapping]]] = ..., lost: _Optional[_Iterable[bytes]] = ..., serial: _Optional[int] = ..., resident_added: _Optional[_Iterable[bytes]] = ..., resident_dropped: _Optional[_Iterable[bytes]] = ..., full_writes: _Optional[int] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
