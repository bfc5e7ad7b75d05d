-- The pools of the strategy unit-rows: a row for each unit of a sale's stock that was taken out of
-- tb_seckill_voucher.stock and is not sold yet. A purchase deletes one that nobody else has locked. What is left of a
-- sale is its stock and its rows here. A Java node knows nothing of this table: it sells what is in the stock.
CREATE TABLE IF NOT EXISTS tb_stock_unit (
  id          BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  voucher_id  BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (id),
  KEY idx_voucher (voucher_id)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
