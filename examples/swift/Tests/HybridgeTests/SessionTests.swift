// HYBRIDGE_MODEL=OUT/model.pte swift test: a session does what hybridge.h says, whatever the model.
import Foundation
import XCTest

@testable import Hybridge

private struct Gone: Error {}

final class SessionTests: XCTestCase {
  private let prompt: [Int64] = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]
  private var model: Model!
  private var session: Session!
  private var plain: [Int64] = []

  override func setUpWithError() throws {
    guard let path = ProcessInfo.processInfo.environment["HYBRIDGE_MODEL"] else { throw XCTSkip("HYBRIDGE_MODEL is not set") }
    model = try Model(path: path)
    session = try Session(model)
    plain = try text(.none)
    try session.reset()
  }

  private func text(_ drafter: Drafter) throws -> [Int64] {
    var text: [Int64] = []
    try session.reset()
    try session.generate(prompt, maxNewTokens: 20, drafter: drafter) { text.append($0); return true }
    return text
  }

  private func best(_ logits: ArraySlice<Float>) -> Int64 {
    Int64(logits.enumerated().max { ($0.element, -$0.offset) < ($1.element, -$1.offset) }!.offset)
  }

  private func refused(_ status: Status, _ body: () throws -> Void) {
    XCTAssertThrowsError(try body()) { XCTAssertEqual($0 as? HybridgeError, HybridgeError(status: status)) }
  }

  func testPromptLookupGivesTheSameText() throws {
    XCTAssertEqual(try text(.promptLookup), plain)
    XCTAssertEqual(plain.count, 20)
  }

  func testEachDrafterGivesTheSameText() throws {
    XCTAssertEqual(try text(.model(model)), plain)
    if model.draftLen > 0 {
      XCTAssertEqual(try text(.own), plain)
    } else {
      refused(.invalidDrafter) { _ = try text(.own) }
    }
  }

  func testAMaskDecidesWhatMayCome() throws {
    var masked: [Int64] = []
    try session.generate(
      prompt, maxNewTokens: 20, blockLength: 4,
      mask: { text, logits in
        for i in logits.indices where (i + text.count) % 3 != 0 { logits[i] = -.infinity }
      }
    ) { masked.append($0); return true }
    for (i, token) in masked.enumerated() { XCTAssertEqual((Int(token) + prompt.count + i) % 3, 0) }
    try session.reset()
    refused(.invalidGrammar) {
      try session.generate(prompt, mask: { _, logits in for i in logits.indices { logits[i] = -.infinity } }) { _ in true }
    }
    try session.reset()
    XCTAssertThrowsError(try session.generate(prompt, mask: { _, _ in throw Gone() }) { _ in true }) { XCTAssertTrue($0 is Gone) }
  }

  func testCheckpoints() throws {
    try session.prefill(prompt)
    var first: Checkpoint? = try session.checkpoint()
    try session.decode(plain[0])
    let second = try session.checkpoint()
    XCTAssertEqual([first!.length, second.length], [prompt.count, prompt.count + 1])
    XCTAssertLessThan(second.bytes, first!.bytes)
    try session.resume(first!)
    XCTAssertEqual(best(try session.decode(plain[0])[...]), plain[1])
    first = nil
    let other = try Session(model)
    try other.resume(second)
    XCTAssertEqual(try other.committed, prompt + [plain[0]])
    XCTAssertEqual(best(try other.decode(plain[1])[...]), plain[2])

    let cache = try PrefixCache(model, bytes: 1 << 26)
    try session.reset()
    let shorter = Array(prompt.dropLast(4))
    XCTAssertEqual(try session.bring(to: shorter, cache: cache), 0)
    XCTAssertEqual(try session.bring(to: prompt, cache: cache), shorter.count)
    XCTAssertEqual(try session.bring(to: Array(prompt.dropLast(2)), cache: cache), shorter.count)
    XCTAssertEqual(try session.committed, Array(prompt.dropLast(2)))
    refused(.invalidArgument) { try session.bring(to: []) }
    refused(.invalidArgument) { try PrefixCache(model, bytes: -1) }
  }

  func testASeedGivesTheSameTextWithPromptLookup() throws {
    let heat = Sampling(temperature: 0.9, topK: 30, topP: 0.95, repetitionPenalty: 1.2, seed: 11)
    var texts: [[Int64]] = []
    for drafter in [Drafter.none, .promptLookup] {
      var text: [Int64] = []
      try session.reset()
      try session.generate(prompt, maxNewTokens: 20, drafter: drafter, sampling: heat) { text.append($0); return true }
      texts.append(text)
    }
    XCTAssertEqual(texts[0], texts[1])
    XCTAssertNotEqual(texts[0], plain)
    refused(.invalidArgument) { try session.generate([1], sampling: Sampling(temperature: -1)) { _ in true } }
  }

  func testRefusals() throws {
    refused(.unreadableFile) { _ = try Model(path: "no such file") }
    refused(.invalidToken) { try session.prefill([]) }
    refused(.invalidToken) { try session.decode(-1) }
    refused(.invalidToken) { _ = try session.verify([]) }
    refused(.invalidToken) { _ = try session.verify(Array(repeating: 1, count: model.verifyLen + 1)) }
    refused(.invalidArgument) { try session.generate([1], maxNewTokens: 0) { _ in true } }
    refused(.invalidCommit) { try session.commit(1) }
    refused(.noRoom) { try session.prefill(Array(repeating: 1, count: model.maxSeqLen + 1)) }
    refused(.unreadableFile) { try session.load("no such file") }
    refused(.invalidArgument) { try session.save("victim\0.state") }
    XCTAssertEqual(try session.committed, [])
    XCTAssertTrue(HybridgeError(status: .noRoom).description.contains("(noRoom)"))
  }

  func testCallbacksEndAGeneration() throws {
    var three: [Int64] = []
    try session.generate(prompt) { three.append($0); return three.count < 3 }
    XCTAssertEqual(three, Array(plain.prefix(3)))

    try session.reset()
    XCTAssertThrowsError(try session.generate(prompt) { _ in throw Gone() }) { XCTAssertTrue($0 is Gone) }
    XCTAssertEqual(try session.committed, prompt)

    try session.reset()
    refused(.busy) { try session.generate(prompt) { _ in try session.decode(1); return true } }

    try session.reset()
    var given = 0
    try session.generate(prompt) { _ in given += 1; session.cancel(); return true }
    XCTAssertEqual(given, 1)
  }

  func testVerifyCommitRollBackAndSave() throws {
    XCTAssertEqual(best(try session.prefill(prompt)[...]), plain[0])
    try session.snapshot(0)
    let logits = try session.verify(Array(plain.prefix(2)))
    XCTAssertEqual(logits.count, 2 * model.vocabSize)
    XCTAssertEqual(best(ArraySlice(Array(logits.suffix(model.vocabSize)))), plain[2])
    try session.commit(1)
    let path = NSTemporaryDirectory() + "état 🦜 \(UUID())"
    defer { try? FileManager.default.removeItem(atPath: path) }
    try session.save(path)
    try session.restore(0)
    XCTAssertEqual(try session.committed, prompt)
    let other = try Session(model)
    try other.load(path)
    XCTAssertEqual(try other.committed, prompt + [plain[0]])
    XCTAssertEqual(best(try other.decode(plain[1])[...]), plain[2])
  }

  func testAStreamGivesTheTokensAndEndsWithItsReader() async throws {
    var all: [Int64] = []
    for try await token in session.tokens(after: prompt, maxNewTokens: 20) { all.append(token) }
    XCTAssertEqual(all, plain)

    try session.reset()
    var few: [Int64] = []
    for try await token in session.tokens(after: prompt, maxNewTokens: 1000) {
      few.append(token)
      if few.count == 4 { break }
    }
    XCTAssertEqual(few, Array(plain.prefix(4)))
    try session.reset()  // waits for the end of what still runs
    XCTAssertEqual(try text(.promptLookup), plain)
  }

  func testThreadsWaitForEachOther() throws {
    let session = try Session(model)
    DispatchQueue.concurrentPerform(iterations: 3) { _ in
      for _ in 0..<20 { XCTAssertNotNil(try? session.prefill([1])) }
    }
    XCTAssertEqual(try session.committed.count, 60)
  }

  func testASessionKeepsItsModelAndGoesWithItsLastReference() throws {
    weak var gone = session
    model = nil
    XCTAssertEqual(best(try session.prefill(prompt)[...]), plain[0])
    session = nil
    XCTAssertNil(gone)
  }
}
