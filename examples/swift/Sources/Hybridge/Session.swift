import CHybridge
import Foundation

/// How the prompts of a session were read, in tokens.
public struct PromptsRead: Sendable {
  public let delegateInUse: Bool
  public let delegateTokens, cpuTokens: Int
  /// Why the accelerator is not in use; empty while it is.
  public let reason: String
}

/// One conversation: a state that goes on, is kept and is rolled back. Tokens are ids; the app has the tokenizer.
///
/// Calls block and may come from any thread: one that comes while another of this session runs waits for it. Sessions
/// of one model take turns, a round of a generation or a chunk of a prompt at a time. `tokens(after:)` runs off the
/// caller's thread. `cancel` alone never waits. The state's memory is given back when the last reference goes.
///
/// Every call throws `HybridgeError`: `.invalidToken` for a token outside the vocabulary, `.noRoom` where the context is
/// full, `.busy` from the session's own callback.
public final class Session: @unchecked Sendable {  // the C functions may be called from any thread
  private let handle: hybridge_session
  private let model: Model
  private let turn = NSRecursiveLock()

  /// An empty state over the model's weights.
  public init(_ model: Model) throws {
    var handle = hybridge_session()
    try expectOK(hybridge_session_open(model.handle, &handle))
    (self.handle, self.model) = (handle, model)
  }

  deinit { hybridge_session_close(handle) }

  /// The committed tokens.
  public var committed: [Int64] {
    get throws {
      turn.lock()
      defer { turn.unlock() }
      return try filled { hybridge_tokens(handle, $0, $1, &$2) }
    }
  }

  /// The places of the text at which the accelerator began and stopped to read it, in turn.
  public var delegated: [Int64] {
    get throws {
      turn.lock()
      defer { turn.unlock() }
      return try filled { hybridge_delegated(handle, $0, $1, &$2) }
    }
  }

  /// How prompts were read, by the accelerator that the model was exported for and by the CPU; nil without one.
  public var promptsRead: PromptsRead? {
    get throws {
      turn.lock()
      defer { turn.unlock() }
      var read = hybridge_prompts_read()
      var size = 0
      let status = hybridge_session_prompts(handle, &read, nil, 0, &size)
      if status == HYBRIDGE_UNSUPPORTED { return nil }
      try expectOK(status)
      var reason = [CChar](repeating: 0, count: size)
      try expectOK(hybridge_session_prompts(handle, &read, &reason, reason.count, &size))
      return PromptsRead(
        delegateInUse: read.delegate_in_use != 0, delegateTokens: Int(read.delegate_tokens), cpuTokens: Int(read.cpu_tokens),
        reason: String(decoding: reason.map { UInt8(bitPattern: $0) }, as: UTF8.self))
    }
  }

  /// Commits a prompt of any length; the logits after its last token.
  @discardableResult
  public func prefill(_ prompt: [Int64]) throws -> [Float] {
    try logits { hybridge_prefill(handle, prompt, prompt.count, $0) }
  }

  /// Commits a picture, in a session of its artifact's model; the logits after it.
  @discardableResult
  public func prefillImage(_ picture: Picture) throws -> [Float] { try prefill(picture.ids) }

  /// Commits one token; the logits after it.
  @discardableResult
  public func decode(_ token: Int64) throws -> [Float] {
    try logits { hybridge_decode(handle, token, $0) }
  }

  /// The logits after each of 1 to `verifyLen` tokens, one after another; none of them is committed.
  public func verify(_ block: [Int64]) throws -> [Float] {
    guard block.count <= model.verifyLen else { throw HybridgeError(status: .invalidToken) }
    return try logits(block.count) { hybridge_verify(handle, block, block.count, $0) }
  }

  /// Accepts the first `count` tokens of the verified block, or none of them.
  public func commit(_ count: Int) throws { try call { hybridge_commit(handle, Int64(count)) } }

  /// Keeps the committed state in one of the model's `snapshotSlots`.
  public func snapshot(_ slot: Int) throws { try call { hybridge_snapshot(handle, Int64(slot)) } }

  /// Goes back to what a slot keeps.
  public func restore(_ slot: Int) throws { try call { hybridge_restore(handle, Int64(slot)) } }

  /// The committed state; any number of them may be kept.
  public func checkpoint() throws -> Checkpoint {
    turn.lock()
    defer { turn.unlock() }
    return try Checkpoint(of: handle)
  }

  /// Goes on where a checkpoint of this model was made, bit for bit. All slots are empty then.
  public func resume(_ checkpoint: Checkpoint) throws { try call { hybridge_resume(handle, checkpoint.handle) } }

  /// Leaves the session at a text, without reading what it or a checkpoint of `cache` knows: so many tokens are returned.
  /// Checkpoints of what it reads go into the cache. Where it fails, the session is at a beginning of the text.
  @discardableResult
  public func bring(to text: [Int64], cache: PrefixCache? = nil) throws -> Int {
    var known = 0
    try call { hybridge_bring_to(handle, cache?.handle ?? hybridge_cache(), text, text.count, &known) }
    return known
  }

  /// Empties the state and all slots.
  public func reset() throws { try call { hybridge_reset(handle) } }

  /// Writes the whole state, slots included; the file appears whole or not at all.
  public func save(_ path: String) throws {
    let path = try terminated("the path", path)
    try call { hybridge_save(handle, path, nil) }
  }

  /// Goes on where `save` was called, bit for bit, in a session of the same model.
  public func load(_ path: String) throws {
    let path = try terminated("the path", path)
    try call { hybridge_load(handle, path) }
  }

  /// Ends the generation that runs or waits in this session, after its next token or between two chunks of its prompt.
  public func cancel() { hybridge_cancel(handle) }

  /// Continues `prompt` and gives each token to `onToken`, in this thread. Greedily and with a seed the text is the same with
  /// every `drafter`. It ends after one of the model's `eosIDs`, where the context is full, where `onToken` answers false or
  /// throws (and is thrown on from here, as what `mask` throws), and at a `cancel`: with `.cancelled` where that came before the
  /// first token, and then nothing of the prompt stays.
  ///
  /// - Parameter blockLength: tokens that are verified at once; 0 for what is measured to be fastest.
  /// - Parameter mask: what each token may be; nil for any.
  /// - Parameter grammar: what the text must be, in place of `mask`; nil for any.
  @discardableResult
  public func generate(
    _ prompt: [Int64], maxNewTokens: Int = 64, drafter: Drafter = .auto, blockLength: Int = 0,
    sampling: Sampling = Sampling(), mask: Mask? = nil, grammar: Grammar? = nil,
    onToken: (Int64) throws -> Bool
  ) throws -> Generated {
    guard maxNewTokens > 0, blockLength >= 0 else { throw HybridgeError(status: .invalidArgument) }
    var done = hybridge_generated()
    try withoutActuallyEscaping(onToken) { onToken in
      let callbacks = Callbacks(onToken, mask)
      do {
        try sampling.withCode { draws in
          try call {
            var options = hybridge_generation_defaults()
            (options.max_new_tokens, options.block_length) = (maxNewTokens, blockLength)
            (options.drafter, options.draft, options.sampling) = (drafter.code, drafter.draft, draws)
            if mask != nil { options.mask = apply }
            options.grammar = grammar?.handle ?? hybridge_grammar()
            return hybridge_generate(
              handle, prompt, prompt.count, &options, take, Unmanaged.passUnretained(callbacks).toOpaque(), &done)
          }
        }
      } catch {
        throw callbacks.thrown ?? error  // a mask that threw left no token
      }
      if let thrown = callbacks.thrown { throw thrown }
    }
    return Generated(done)
  }

  private func call(_ body: () -> hybridge_status) throws {
    turn.lock()
    defer { turn.unlock() }
    try expectOK(body())
  }

  private func logits(_ count: Int = 1, _ body: (UnsafeMutablePointer<Float>) -> hybridge_status) throws -> [Float] {
    guard count > 0 else { throw HybridgeError(status: .invalidArgument) }
    return try [Float](unsafeUninitializedCapacity: count * model.vocabSize) { buffer, filled in
      try call { body(buffer.baseAddress!) }
      filled = buffer.count
    }
  }
}
