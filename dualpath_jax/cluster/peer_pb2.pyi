from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegionHandle(_message.Message):
    __slots__ = ("region_id", "generation", "size_bytes")
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    generation: int
    size_bytes: int
    def __init__(self, region_id: _Optional[int] = ..., generation: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class RequestRef(_message.Message):
    __slots__ = ("request_id", "attempt")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    attempt: int
    def __init__(self, request_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ("buffer",)
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    buffer: RegionHandle
    def __init__(self, buffer: _Optional[_Union[RegionHandle, _Mapping]] = ...) -> None: ...

class ReadsRequest(_message.Message):
    __slots__ = ("request", "part")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    request: RequestRef
    part: int
    def __init__(self, request: _Optional[_Union[RequestRef, _Mapping]] = ..., part: _Optional[int] = ...) -> None: ...

class ReadsReply(_message.Message):
    __slots__ = ("verified_blocks", "read_start", "read_end")
    VERIFIED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    READ_START_FIELD_NUMBER: _ClassVar[int]
    READ_END_FIELD_NUMBER: _ClassVar[int]
    verified_blocks: int
    read_start: float
    read_end: float
    def __init__(self, verified_blocks: _Optional[int] = ..., read_start: _Optional[float] = ..., read_end: _Optional[float] = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("request", "peer", "stage", "first_layer", "last_layer", "first_block", "last_block", "offset_bytes", "layer_stride_bytes")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    LAST_LAYER_FIELD_NUMBER: _ClassVar[int]
    FIRST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    LAST_BLOCK_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAYER_STRIDE_BYTES_FIELD_NUMBER: _ClassVar[int]
    request: RequestRef
    peer: str
    stage: RegionHandle
    first_layer: int
    last_layer: int
    first_block: int
    last_block: int
    offset_bytes: int
    layer_stride_bytes: int
    def __init__(self, request: _Optional[_Union[RequestRef, _Mapping]] = ..., peer: _Optional[str] = ..., stage: _Optional[_Union[RegionHandle, _Mapping]] = ..., first_layer: _Optional[int] = ..., last_layer: _Optional[int] = ..., first_block: _Optional[int] = ..., last_block: _Optional[int] = ..., offset_bytes: _Optional[int] = ..., layer_stride_bytes: _Optional[int] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HandoverRequest(_message.Message):
    __slots__ = ("request", "first_token", "computed_from_block")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FROM_BLOCK_FIELD_NUMBER: _ClassVar[int]
    request: RequestRef
    first_token: int
    computed_from_block: int
    def __init__(self, request: _Optional[_Union[RequestRef, _Mapping]] = ..., first_token: _Optional[int] = ..., computed_from_block: _Optional[int] = ...) -> None: ...

class HandoverReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("snic_read_bytes", "snic_written_bytes", "snic_read_busy_s", "cnic_bytes", "snic_samples", "dropped_blocks", "pending_blocks", "memory_read_bytes")
    SNIC_READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNIC_WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNIC_READ_BUSY_S_FIELD_NUMBER: _ClassVar[int]
    CNIC_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNIC_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PENDING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    snic_read_bytes: int
    snic_written_bytes: int
    snic_read_busy_s: float
    cnic_bytes: _containers.RepeatedScalarFieldContainer[int]
    snic_samples: _containers.RepeatedCompositeFieldContainer[SnicSample]
    dropped_blocks: int
    pending_blocks: int
    memory_read_bytes: int
    def __init__(self, snic_read_bytes: _Optional[int] = ..., snic_written_bytes: _Optional[int] = ..., snic_read_busy_s: _Optional[float] = ..., cnic_bytes: _Optional[_Iterable[int]] = ..., snic_samples: _Optional[_Iterable[_Union[SnicSample, _Mapping]]] = ..., dropped_blocks: _Optional[int] = ..., pending_blocks: _Optional[int] = ..., memory_read_bytes: _Optional[int] = ...) -> None: ...

class SnicSample(_message.Message):
    __slots__ = ("time", "seconds", "read_bytes", "written_bytes")
    TIME_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    READ_BYTES_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    time: float
    seconds: float
    read_bytes: int
    written_bytes: int
    def __init__(self, time: _Optional[float] = ..., seconds: _Optional[float] = ..., read_bytes: _Optional[int] = ..., written_bytes: _Optional[int] = ...) -> None: ...
