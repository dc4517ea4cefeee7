;; Says that its answer lies where no record can.
(func $evaluate (param $request i32) (result i32)
  (select (global.get $decision) (i32.const 1027) (call $tried (local.get $request))))
