import Foundation

extension Session {
  /// The tokens of `generate`, on a thread of their own. Where the task that reads them is cancelled, so is the generation, and
  /// the session's text ends before the last token that was given.
  ///
  ///     for try await token in session.tokens(after: prompt) { show(token) }
  public func tokens(
    after prompt: [Int64], maxNewTokens: Int = 64, drafter: Drafter = .auto, sampling: Sampling = Sampling()
  ) -> AsyncThrowingStream<Int64, Error> {
    AsyncThrowingStream { continuation in
      continuation.onTermination = { [weak self] _ in self?.cancel() }
      DispatchQueue.global(qos: .userInitiated).async {
        do {
          try self.generate(prompt, maxNewTokens: maxNewTokens, drafter: drafter, sampling: sampling) { token in
            if case .terminated = continuation.yield(token) { return false }
            return true
          }
          continuation.finish()
        } catch let error as HybridgeError where error.status == .cancelled {
          continuation.finish(throwing: CancellationError())
        } catch {
          continuation.finish(throwing: error)
        }
      }
    }
  }
}
