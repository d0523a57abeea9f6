import CHybridge

/// hybridge_status of hybridge.h.
public enum Status: UInt32, Sendable {
  case invalidArgument = 1, invalidHandle, busy, noRoom, invalidState, invalidArtifact, unreadableFile, missingOperator
  case outOfMemory, `internal`, cancelled, notFinite, brokenState, programFailed, invalidToken, invalidCommit, invalidSlot
  case invalidDrafter, invalidPicture, invalidGrammar, invalidTemplate, invalidSavedState, unwritableFile
  case otherModel, unsupported, callbackFailed
}

/// A refused call. The session's state is as it was before it; a generation keeps the tokens that it had given. After a call that
/// failed in the middle and could not be undone, others are refused with `brokenState` until the session is reset, or a state is
/// restored, resumed or loaded. reason: what is wrong and what to do, in
/// words. Errors of one status are equal.
public struct HybridgeError: Error, Equatable, CustomStringConvertible {
  public let status: Status
  public let reason: String

  public init(status: Status, reason: String = "") { (self.status, self.reason) = (status, reason) }

  public static func == (one: HybridgeError, other: HybridgeError) -> Bool { one.status == other.status }

  public var description: String {
    let text = reason.isEmpty ? String(cString: hybridge_status_text(hybridge_status(rawValue: .init(status.rawValue)))) : reason
    return "\(text) (\(status))"
  }
}

/// Throws where `status` is an error.
func expectOK(_ status: hybridge_status) throws {
  if status == HYBRIDGE_OK { return }
  throw HybridgeError(status: Status(rawValue: UInt32(status.rawValue)) ?? .internal, reason: String(cString: hybridge_failure()))
}

/// Returns a text for C, which reads it up to its first NUL. Throws `.invalidArgument` for one with a NUL inside.
func terminated(_ name: String, _ text: String) throws -> String {
  guard !text.utf8.contains(0) else { throw HybridgeError(status: .invalidArgument, reason: "\(name) has a NUL character: remove it") }
  return text
}

/// An array that `body` fills, which tells its length where it is given none.
func filled(_ body: (UnsafeMutablePointer<Int64>?, Int, inout Int) -> hybridge_status) throws -> [Int64] {
  var count = 0
  try expectOK(body(nil, 0, &count))
  var values = [Int64](repeating: 0, count: count)
  try values.withUnsafeMutableBufferPointer { try expectOK(body($0.baseAddress, $0.count, &count)) }
  return values
}
