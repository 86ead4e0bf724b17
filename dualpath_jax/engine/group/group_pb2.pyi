from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Frame(_message.Message):
    __slots__ = ("hello", "call", "answer", "pieces")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    call: Call
    answer: Answer
    pieces: int
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., call: _Optional[_Union[Call, _Mapping]] = ..., answer: _Optional[_Union[Answer, _Mapping]] = ..., pieces: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("process", "config_digest")
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_DIGEST_FIELD_NUMBER: _ClassVar[int]
    process: int
    config_digest: bytes
    def __init__(self, process: _Optional[int] = ..., config_digest: _Optional[bytes] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("warm_up_prefill", "warm_up_decode", "start_prefill", "run_layers", "finish_prefill", "insert", "step", "export_block", "release", "close")
    WARM_UP_PREFILL_FIELD_NUMBER: _ClassVar[int]
    WARM_UP_DECODE_FIELD_NUMBER: _ClassVar[int]
    START_PREFILL_FIELD_NUMBER: _ClassVar[int]
    RUN_LAYERS_FIELD_NUMBER: _ClassVar[int]
    FINISH_PREFILL_FIELD_NUMBER: _ClassVar[int]
    INSERT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EXPORT_BLOCK_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    warm_up_prefill: WarmUpPrefill
    warm_up_decode: WarmUpDecode
    start_prefill: StartPrefill
    run_layers: RunLayers
    finish_prefill: FinishPrefill
    insert: Insert
    step: Step
    export_block: ExportBlock
    release: Slot
    close: Close
    def __init__(self, warm_up_prefill: _Optional[_Union[WarmUpPrefill, _Mapping]] = ..., warm_up_decode: _Optional[_Union[WarmUpDecode, _Mapping]] = ..., start_prefill: _Optional[_Union[StartPrefill, _Mapping]] = ..., run_layers: _Optional[_Union[RunLayers, _Mapping]] = ..., finish_prefill: _Optional[_Union[FinishPrefill, _Mapping]] = ..., insert: _Optional[_Union[Insert, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., export_block: _Optional[_Union[ExportBlock, _Mapping]] = ..., release: _Optional[_Union[Slot, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("error", "choices", "slot")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    error: str
    choices: _containers.RepeatedCompositeFieldContainer[Choice]
    slot: Slot
    def __init__(self, error: _Optional[str] = ..., choices: _Optional[_Iterable[_Union[Choice, _Mapping]]] = ..., slot: _Optional[_Union[Slot, _Mapping]] = ...) -> None: ...

class WarmUpPrefill(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Layers]
    def __init__(self, groups: _Optional[_Iterable[_Union[Layers, _Mapping]]] = ...) -> None: ...

class Layers(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class WarmUpDecode(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "seed")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    seed: int
    def __init__(self, temperature: _Optional[float] = ..., seed: _Optional[int] = ...) -> None: ...

class StartPrefill(_message.Message):
    __slots__ = ("chunks", "stage_capacity")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    STAGE_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    stage_capacity: int
    def __init__(self, chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ..., stage_capacity: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("request", "engine", "tokens", "start", "sampling", "forced_token", "token_offset", "stage_block")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    FORCED_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STAGE_BLOCK_FIELD_NUMBER: _ClassVar[int]
    request: str
    engine: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    start: int
    sampling: Sampling
    forced_token: int
    token_offset: int
    stage_block: int
    def __init__(self, request: _Optional[str] = ..., engine: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., start: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., forced_token: _Optional[int] = ..., token_offset: _Optional[int] = ..., stage_block: _Optional[int] = ...) -> None: ...

class RunLayers(_message.Message):
    __slots__ = ("layers",)
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    layers: Layers
    def __init__(self, layers: _Optional[_Union[Layers, _Mapping]] = ...) -> None: ...

class FinishPrefill(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Insert(_message.Message):
    __slots__ = ("request", "engine", "prompt_tokens", "first_token", "max_tokens", "sampling", "forced_tokens")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    FORCED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request: str
    engine: int
    prompt_tokens: int
    first_token: int
    max_tokens: int
    sampling: Sampling
    forced_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, request: _Optional[str] = ..., engine: _Optional[int] = ..., prompt_tokens: _Optional[int] = ..., first_token: _Optional[int] = ..., max_tokens: _Optional[int] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., forced_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ExportBlock(_message.Message):
    __slots__ = ("slot", "block")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    slot: Slot
    block: int
    def __init__(self, slot: _Optional[_Union[Slot, _Mapping]] = ..., block: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Slot(_message.Message):
    __slots__ = ("engine", "index", "serial")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SERIAL_FIELD_NUMBER: _ClassVar[int]
    engine: int
    index: int
    serial: int
    def __init__(self, engine: _Optional[int] = ..., index: _Optional[int] = ..., serial: _Optional[int] = ...) -> None: ...

class Choice(_message.Message):
    __slots__ = ("chunk", "slot", "token", "logprob", "top_tokens", "top_logprobs")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    chunk: int
    slot: Slot
    token: int
    logprob: float
    top_tokens: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, chunk: _Optional[int] = ..., slot: _Optional[_Union[Slot, _Mapping]] = ..., token: _Optional[int] = ..., logprob: _Optional[float] = ..., top_tokens: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...
