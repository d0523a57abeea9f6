import CHybridge

/// What replaying golden steps found; errors of logits as shares of the largest one.
public struct Validation: Sendable {
  public let steps: Int
  public let worst, tolerance: Double
  /// All steps answered the same bits as where the model was exported.
  public let sameBits: Bool
}

/// An artifact's `model.pte`, mapped; its sessions share the weights and keep them as long as they need them.
public final class Model: Sendable {
  /// Lengths in tokens.
  public let maxSeqLen, vocabSize, prefillChunk, verifyLen, snapshotSlots: Int
  /// Most draft tokens of the drafter inside the model, 0 without one.
  public let draftLen: Int
  /// The tokens after which a generation ends.
  public let eosIDs: Set<Int64>
  let handle: hybridge_model

  /// hybridge's version.
  public static var version: String { String(cString: hybridge_version()) }

  /// Lets all sessions compute on `count` threads, up to 1024; 0: one for each fast core, as it is where nobody chooses. Call it
  /// before a model is opened.
  public static func setThreads(_ count: Int) throws {
    try expectOK(count < 0 ? HYBRIDGE_INVALID_ARGUMENT : hybridge_set_threads(count))
  }

  /// Opens a program without its folder; `Artifact.model` is one with pictures. context: most tokens of a text, up to what the
  /// program holds, which is the default. Throws `.unreadableFile`, `.invalidArtifact`, `.missingOperator`, `.outOfMemory`, or
  /// `.invalidArgument` for a context that the program does not hold.
  public convenience init(path: String, context: Int? = nil) throws { try self.init(Model.open(path), context: context) }

  /// Takes a handle over.
  init(_ handle: hybridge_model, context: Int? = nil) throws {
    do {
      if let context { try expectOK(hybridge_model_limit(handle, Int64(context))) }
      var info = hybridge_info()
      try expectOK(hybridge_model_info(handle, &info))
      (maxSeqLen, vocabSize, prefillChunk) = (Int(info.max_seq_len), Int(info.vocab_size), Int(info.prefill_chunk))
      (verifyLen, snapshotSlots, draftLen) = (Int(info.verify_len), Int(info.snapshot_slots), Int(info.draft_len))
      eosIDs = try Set(filled { hybridge_model_eos_ids(handle, $0, $1, &$2) })
    } catch {
      hybridge_model_close(handle)
      throw error
    }
    self.handle = handle
  }

  /// Replays the steps that the export stored with the logits of the eager model. path: of an artifact's `golden.json`. Throws
  /// `.unreadableFile`, and `.invalidArtifact` for a damaged file, an error above the tolerance, or other bits than there must be.
  public func validate(path: String) throws -> Validation {
    var found = hybridge_validation()
    try expectOK(hybridge_validate(handle, terminated("the path", path), &found))
    return Validation(
      steps: Int(found.steps), worst: found.worst, tolerance: found.tolerance, sameBits: found.same_bits != 0)
  }

  /// Lets sessions and chats that are opened from now on read prompts of `tokens` and more by the accelerator that the model was
  /// exported for; 0, the default, for as many as its export says.
  public func delegateFrom(_ tokens: Int) throws { try expectOK(hybridge_model_delegate_from(handle, Int64(tokens))) }

  /// Lets sessions and chats that are opened from now on continue only from a state whose tokens were read by the method, the
  /// accelerator's or the CPU's, that would read them now. What they do not continue from is read again; `resume` and `load`
  /// throw `.unsupported`.
  public func strictReuse(_ wanted: Bool) throws { try expectOK(hybridge_model_strict_reuse(handle, wanted ? 1 : 0)) }

  deinit { hybridge_model_close(handle) }

  private static func open(_ path: String) throws -> hybridge_model {
    var handle = hybridge_model()
    try expectOK(hybridge_model_open(terminated("the path", path), &handle))
    return handle
  }
}
