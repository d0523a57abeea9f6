import CHybridge

/// A state in memory that any session of its model goes on from, whatever came since: `Session.checkpoint` makes one,
/// and `Session.resume` goes back to it. Its memory is given back when the last reference goes: if a session of the
/// model runs then, at the end of its round.
public final class Checkpoint: Sendable {
  /// The tokens of its text.
  public let length: Int
  /// Those of its own: it shares the rest with the session's checkpoint before, where that is kept.
  public let bytes: Int
  let handle: hybridge_checkpoint

  init(of session: hybridge_session) throws {
    var handle = hybridge_checkpoint()
    try expectOK(hybridge_checkpoint_make(session, &handle))
    var kept = hybridge_kept()
    hybridge_checkpoint_info(handle, &kept)
    (self.handle, length, bytes) = (handle, kept.length, kept.bytes)
  }

  deinit { hybridge_checkpoint_close(handle) }
}

/// Checkpoints of at most so many bytes by their texts, for `Session.bring(to:cache:)` of all sessions of a model; what was used
/// least recently goes first.
public final class PrefixCache: Sendable {
  let handle: hybridge_cache

  public init(_ model: Model, bytes: Int) throws {
    var handle = hybridge_cache()
    try expectOK(bytes < 0 ? HYBRIDGE_INVALID_ARGUMENT : hybridge_cache_open(model.handle, bytes, &handle))
    self.handle = handle
  }

  deinit { hybridge_cache_close(handle) }
}
