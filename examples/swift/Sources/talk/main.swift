// Two chat turns with the demo's model: the second goes back to before the first.   talk MODEL.pte QUESTION [STATE]
import Foundation
import Hybridge

// The demo's model reads bytes: a token for each. An app has its tokenizer here.
func encode(_ text: String) -> [Int64] { text.utf8.map(Int64.init) }

func show(_ token: Int64) -> Bool {
  guard let byte = UInt8(exactly: token) else { return false }
  FileHandle.standardOutput.write(Data([byte]))
  return true
}

func show(_ text: String) { FileHandle.standardOutput.write(Data(text.utf8)) }

let arguments = CommandLine.arguments
guard arguments.count > 2 else {
  FileHandle.standardError.write(Data("usage: talk MODEL.pte QUESTION [STATE]\n".utf8))
  exit(2)
}
do {
  let session = try Session(Model(path: arguments[1]))
  try session.prefill(encode("\n\n# \(arguments[2])\n"))  // the demo's chat template
  try session.snapshot(0)
  for start in ["def ", "import "] {
    try session.restore(0)
    show(start)
    let done = try session.generate(encode(start), maxNewTokens: 48, onToken: show)
    show("\n[\(done.tokens) tokens, \(done.accepted) of \(done.proposed) draft tokens accepted]\n")
  }
  if arguments.count > 3 { try session.save(arguments[3]) }
} catch {
  FileHandle.standardError.write(Data("talk: \(error)\n".utf8))
  exit(1)
}
